import { useQueryClient } from "@tanstack/react-query";
import { type SubmitEvent, useEffect, useState } from "react";
import { useLocation, useParams } from "wouter";
import { LanguageSwitch } from "@/app/LanguageSwitch";
import { api } from "@/shared/api/api";
import { useI18n } from "@/shared/i18n";
import { useMe } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Input } from "@/shared/ui/Field";

export default function InvitePage() {
  const { t } = useI18n();
  const { token } = useParams<{ token: string }>();
  const [, go] = useLocation();
  const client = useQueryClient();
  const me = useMe();
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    document.title = `${t("invite.title")} · Berth`;
  }, [t]);

  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setError(null);
    try {
      const { org } = await api.acceptInvitation(me.data ? { token } : { token, name, password });
      await client.invalidateQueries();
      go(`/o/${org.slug}`, { replace: true });
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return (
    <main className="signin">
      <form className="signin-box" onSubmit={(event) => void submit(event)}>
        <LanguageSwitch />
        <h1>{t("invite.title")}</h1>
        <p className="muted">{me.data ? me.data.email : t("invite.text")}</p>
        {error ? <ErrorNotice error={error} /> : null}
        {me.data ? null : (
          <>
            <Input label={t("invite.name")} autoComplete="name" value={name} onChange={(event) => setName(event.target.value)} />
            <Input label={t("invite.password")} help={t("invite.passwordHelp")} type="password" autoComplete="new-password" minLength={10} required value={password} onChange={(event) => setPassword(event.target.value)} />
          </>
        )}
        <Button type="submit" kind="primary" busy={busy}>{busy ? t("invite.busy") : t("invite.submit")}</Button>
      </form>
    </main>
  );
}
