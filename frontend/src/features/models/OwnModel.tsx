import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { CodeBlock } from "@/shared/ui/Copy";
import { Card } from "@/shared/ui/Page";

/** How a file of one's own becomes a model. It is a command, because the file lies on the server's disk. */
export function OwnModel() {
  const { t } = useI18n();
  const { slug } = useOrg();
  return (
    <Card title={t("models.own")}>
      <div className="stack">
        <p>{t("models.own.text")}</p>
        <CodeBlock label={t("models.own.command")} code={`.venv/bin/python -m berth.host manage import_model ${slug} /path/to/model.gguf --name my-model`} wrap />
        <p className="muted">{t("models.own.who")}</p>
      </div>
    </Card>
  );
}
