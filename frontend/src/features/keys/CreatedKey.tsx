import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { CodeBlock } from "@/shared/ui/Copy";
import { Notice } from "@/shared/ui/Notice";
import { snippet } from "@/features/deployments/snippets";
import { useDeployments } from "@/features/deployments/DeploymentsPage";
import type { IssuedKey } from "@/shared/api/types";
import { Spread } from "./Spread";

/** The only time a secret is in the page. It leaves the page's memory when the panel closes. */
export function CreatedKey({ created, onStored }: { created: IssuedKey; onStored: () => void }) {
  const { t } = useI18n();
  const { me, slug } = useOrg();
  const deployments = useDeployments();
  const { secret } = created;
  const target = deployments.data?.items.find((each) => each.state === "ready") ?? deployments.data?.items[0];
  const model = target?.model_id ?? `${slug}/…`;
  return (
    <section aria-label={t("keys.created.title", { name: created.name })}>
      <Notice tone="ok" title={t("keys.created.title", { name: created.name })}>
        <div className="stack">
          <p>{t("keys.created.text")}</p>
          <CodeBlock label={t("keys.secret")} code={secret} wrap />
          <Spread change={created.change.id} done="keys.activeOn" />
          <CodeBlock label="curl" code={snippet("curl", me.api_base, model, true).replace("$BERTH_API_KEY", secret)} />
          <div>
            <Button kind="primary" onClick={onStored}>{t("keys.stored")}</Button>
          </div>
        </div>
      </Notice>
    </section>
  );
}
