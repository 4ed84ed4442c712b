import { useState } from "react";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { ButtonLink } from "@/shared/ui/Button";
import { CodeBlock, CopyButton } from "@/shared/ui/Copy";
import { Segments } from "@/shared/ui/Field";
import { Card } from "@/shared/ui/Page";
import { Facts } from "@/shared/ui/Table";
import { type Language, snippet } from "./snippets";

const LANGUAGES: readonly { value: Language; label: string }[] = [
  { value: "curl", label: "curl" },
  { value: "python", label: "Python" },
  { value: "javascript", label: "JavaScript" },
];

export function CallIt({ model, chat }: { model: string; chat: boolean }) {
  const { t } = useI18n();
  const { me, slug, can } = useOrg();
  const [language, setLanguage] = useState<Language>("curl");
  const label = LANGUAGES.find((each) => each.value === language)?.label ?? language;
  return (
    <Card title={t("deployment.callIt")} actions={<Segments label={t("deployment.callIt")} value={language} options={LANGUAGES} onChange={setLanguage} />}>
      <div className="stack">
        <p className="muted">{t("deployment.callIt.text")}</p>
        <Facts
          items={[
            [t("deployment.baseUrl"), <Copied key="base" text={me.api_base} what={t("deployment.baseUrl")} />],
            [t("deployment.modelName"), <Copied key="model" text={model} what={t("deployment.modelName")} />],
          ]}
        />
        <CodeBlock label={label} code={snippet(language, me.api_base, model, chat)} />
        <div className="spread">
          <p className="small muted">{t("deployment.keyNote")}</p>
          {can("keys.create") ? <ButtonLink size="small" href={`/o/${slug}/keys`}>{t("nav.keys")}</ButtonLink> : null}
        </div>
      </div>
    </Card>
  );
}

function Copied({ text, what }: { text: string; what: string }) {
  return (
    <span className="row">
      <code>{text}</code> <CopyButton text={text} what={what} />
    </span>
  );
}
