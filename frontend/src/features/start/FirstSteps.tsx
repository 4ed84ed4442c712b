import type { ReactNode } from "react";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { ButtonLink } from "@/shared/ui/Button";
import { Icon } from "@/shared/ui/Icon";
import { Card } from "@/shared/ui/Page";
import { useDeployments } from "@/features/deployments/DeploymentsPage";
import { useKeys } from "@/features/keys/KeysPage";
import { AddSample, useModels } from "@/features/models/ModelsPage";
import { useUsage } from "@/features/usage/useUsage";

type Step = "model" | "deploy" | "key" | "call";

/** What is left between an empty organisation and a streamed answer. Gone once every step is done. */
export function FirstSteps() {
  const { can } = useOrg();
  return can("models.write") && can("keys.create") ? <Steps /> : null;
}

function Steps() {
  const { t } = useI18n();
  const { slug } = useOrg();
  const models = useModels();
  const deployments = useDeployments();
  const keys = useKeys();
  const usage = useUsage("month", "deployment");
  if (!models.data || !deployments.data || !keys.data || !usage.data) return null;
  const first = deployments.data.items.find((each) => each.state === "ready") ?? deployments.data.items[0];
  const done: Record<Step, boolean> = {
    model: models.data.items.length > 0,
    deploy: first !== undefined,
    key: keys.data.pages.some((page) => page.items.some((key) => key.status === "active")),
    call: usage.data.totals.requests > 0,
  };
  const steps = Object.keys(done) as Step[];
  const finished = steps.filter((step) => done[step]).length;
  if (finished === steps.length) return null;
  const actions: Record<Step, ReactNode> = {
    model: <AddSample />,
    deploy: done.model ? <ButtonLink kind="primary" href={`/o/${slug}/deploy`}>{t("start.deploy")}</ButtonLink> : null,
    key: <ButtonLink href={`/o/${slug}/keys`}>{t("keys.create")}</ButtonLink>,
    call: first ? <ButtonLink href={`/o/${slug}/deployments/${first.name}/playground`}>{t("start.openPlayground")}</ButtonLink> : null,
  };
  return (
    <Card title={t("start.title")} actions={<span className="muted num">{t("start.progress", { done: finished, total: steps.length })}</span>}>
      <p className="muted">{t("start.lead")}</p>
      <ol>
        {steps.map((step) => (
          <li key={step} className="checklist-item">
            <Icon name={done[step] ? "check" : "circle"} tone={done[step] ? "ok" : "idle"} />
            <div>
              <strong>{t(`start.${step}`)}</strong> <span className="visually-hidden">{done[step] ? t("start.done") : t("start.open")}</span>
              <p className="muted">{t(`start.${step}.text`)}</p>
            </div>
            <div>{done[step] ? null : actions[step]}</div>
          </li>
        ))}
      </ol>
    </Card>
  );
}
