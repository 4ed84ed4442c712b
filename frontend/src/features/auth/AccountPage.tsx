import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type SubmitEvent, useState } from "react";
import { LanguageSwitch } from "@/app/LanguageSwitch";
import { readTheme, setTheme, type Theme } from "@/app/theme";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import { ApiError } from "@/shared/api/client";
import type { Me } from "@/shared/api/types";
import type { Locale } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";
import { Button } from "@/shared/ui/Button";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Input, Segments } from "@/shared/ui/Field";
import { Card, Page } from "@/shared/ui/Page";
import { useToast } from "@/shared/ui/Toasts";

export default function AccountPage({ me }: { me: Me }) {
  const { t } = useI18n();
  return (
    <Page title={t("account.title")} lead={me.email}>
      <div className="grid-2">
        <Profile me={me} />
        <Look />
        <Password />
      </div>
      <p className="small muted">{t("account.version", { version: me.version })}</p>
    </Page>
  );
}

function Profile({ me }: { me: Me }) {
  const { t } = useI18n();
  const client = useQueryClient();
  const toast = useToast();
  const [name, setName] = useState(me.name);
  const save = useMutation({
    mutationFn: () => api.updateMe({ name }),
    onSuccess: (fresh) => {
      client.setQueryData(keys.me, fresh);
      toast(t("common.saved"));
    },
  });
  return (
    <Card title={t("account.profile")}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          save.mutate();
        }}
      >
        <Input label={t("account.name")} autoComplete="name" maxLength={120} value={name} onChange={(event) => setName(event.target.value)} />
        {save.isError ? <ErrorNotice error={save.error} /> : null}
        <div>
          <Button type="submit" busy={save.isPending}>{t("account.saveName")}</Button>
        </div>
      </form>
    </Card>
  );
}

function Look() {
  const { t } = useI18n();
  const [theme, choose] = useState<Theme>(readTheme);
  const remember = useMutation({ mutationFn: (locale: Locale) => api.updateMe({ language: locale === "zh" ? "zh-hans" : "en" }) });
  const options = (["system", "light", "dark"] as const).map((value) => ({ value, label: t(`app.theme.${value}`) }));
  return (
    <Card title={t("account.look")}>
      <div className="stack">
        <div className="stack-s">
          <span className="field-legend">{t("app.language")}</span>
          <div className="row">
            <LanguageSwitch onChosen={(locale) => remember.mutate(locale)} />
            <span className="small muted" role="status">{remember.isSuccess ? t("account.languageSaved") : ""}</span>
          </div>
          {remember.isError ? <ErrorNotice error={remember.error} /> : null}
        </div>
        <div className="stack-s">
          <span className="field-legend">{t("app.theme")}</span>
          <div>
            <Segments
              label={t("app.theme")}
              value={theme}
              options={options}
              onChange={(next) => {
                choose(next);
                setTheme(next);
              }}
            />
          </div>
        </div>
      </div>
    </Card>
  );
}

function Password() {
  const { t } = useI18n();
  const toast = useToast();
  const client = useQueryClient();
  const [current, setCurrent] = useState("");
  const [next, setNext] = useState("");
  const change = useMutation({
    mutationFn: async () => {
      try {
        await api.changePassword(current, next);
      } catch (error) {
        // When the change also ends this session, 401 is its answer: the page then asks to sign in again.
        if (!(error instanceof ApiError && error.signedOut)) throw error;
      }
    },
    onSuccess: () => {
      setCurrent("");
      setNext("");
      toast(t("account.passwordChanged"));
      void client.invalidateQueries({ queryKey: keys.me });
    },
  });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    change.mutate();
  };
  return (
    <Card title={t("account.password")}>
      <form className="stack" onSubmit={submit}>
        <Input label={t("account.currentPassword")} type="password" autoComplete="current-password" required value={current} onChange={(event) => setCurrent(event.target.value)} />
        <Input label={t("account.newPassword")} help={t("invite.passwordHelp")} type="password" autoComplete="new-password" required minLength={10} value={next} onChange={(event) => setNext(event.target.value)} />
        {change.isError ? <ErrorNotice error={change.error} /> : null}
        <div>
          <Button type="submit" busy={change.isPending}>{t("account.changePassword")}</Button>
        </div>
      </form>
    </Card>
  );
}
