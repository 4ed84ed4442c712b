import { useQueryClient } from "@tanstack/react-query";
import { type SubmitEvent, useEffect, useState } from "react";
import { LanguageSwitch } from "@/app/LanguageSwitch";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import { ApiError } from "@/shared/api/client";
import { useI18n } from "@/shared/i18n";
import { Button } from "@/shared/ui/Button";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Input } from "@/shared/ui/Field";

export function SignInPage() {
  const { t } = useI18n();
  const client = useQueryClient();
  const [email, setEmail] = useState("");
  const [password, setPassword] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    document.title = t("signin.title");
  }, [t]);

  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setError(null);
    try {
      await api.signIn(email.trim(), password).catch((failure: unknown) => {
        // 409: this browser is signed in already, in another tab.
        if (!(failure instanceof ApiError && failure.status === 409)) throw failure;
      });
      await client.invalidateQueries({ queryKey: keys.me });
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main className="signin">
      <form className="signin-box" onSubmit={(event) => void submit(event)}>
        <div className="spread">
          <img src="/assets/berth.svg" width="36" height="36" alt="" />
          <LanguageSwitch />
        </div>
        <h1>{t("signin.title")}</h1>
        {error ? <ErrorNotice error={error} title={t("signin.failed")} /> : null}
        <Input label={t("signin.email")} type="email" name="email" autoComplete="username" required value={email} onChange={(event) => setEmail(event.target.value)} />
        <Input label={t("signin.password")} type="password" name="password" autoComplete="current-password" required value={password} onChange={(event) => setPassword(event.target.value)} />
        <Button type="submit" kind="primary" busy={busy}>{busy ? t("signin.busy") : t("signin.submit")}</Button>
        <p className="small muted">{t("signin.help")}</p>
      </form>
    </main>
  );
}
