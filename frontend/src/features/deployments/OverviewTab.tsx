import type { Deployment, Replica } from "@/shared/api/types";
import { bytes, duration } from "@/shared/format/number";
import { dateTime, millis } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { Notice } from "@/shared/ui/Notice";
import { Card } from "@/shared/ui/Page";
import { isMoving, stateWord } from "@/shared/ui/Status";
import { Facts, Table } from "@/shared/ui/Table";
import { BetterPlan } from "./BetterPlan";
import { CallIt } from "./CallIt";
import { useCause } from "./cause";
import { LiveStatus } from "./LiveStatus";
import { PlannedMeasured } from "./PlannedMeasured";
import { isTold, RolloutCard } from "./RolloutCard";
import { shortName, Timeline } from "./Timeline";
import { useStatus } from "./useStatus";

export function OverviewTab({ deployment, chat }: { deployment: Deployment; chat: boolean }) {
  const shown = startupToShow(deployment);
  const watched = useStatus(deployment);
  return (
    <div className="stack">
      <Situation deployment={deployment} />
      {isTold(deployment.rollout) ? <RolloutCard deployment={deployment} rollout={deployment.rollout} /> : null}
      <BetterPlan deployment={deployment} />
      <LiveStatus watched={watched} />
      {shown.map((replica) => (
        <Timeline key={replica.id} replica={replica} usual={deployment.usual} basis={deployment.usual_basis} />
      ))}
      <div className="grid-2">
        <CallIt model={deployment.model_id} chat={chat} />
        <Configuration deployment={deployment} />
      </div>
      <PlannedMeasured checks={watched.status?.planned_against_measured ?? deployment.planned_against_measured} />
      <Replicas deployment={deployment} />
    </div>
  );
}

/** Replicas on their way, else the one that started last. */
export function startupToShow({ replicas }: Deployment): Replica[] {
  const moving = replicas.filter((replica) => replica.ready_at === null && replica.ended_at === null);
  if (moving.length > 0) return moving;
  const latest = [...replicas].sort((a, b) => millis(b.started_at) - millis(a.started_at))[0];
  return latest ? [latest] : [];
}

function Situation({ deployment }: { deployment: Deployment }) {
  const { t } = useI18n();
  const cause = useCause();
  const { state, reason, message, next } = deployment;
  const because = reason === "" ? null : <p>{cause(reason, message)}</p>;
  if (state === "failed") return <Notice tone="danger" title={t("deployment.failedTitle")}>{because}</Notice>;
  if (state === "degraded") return <Notice tone="warn" title={t("deployment.degradedTitle")}>{because}</Notice>;
  if (state === "paused") return <Notice tone="idle" title={t("deployment.pausedTitle")} />;
  if (!isMoving(state) && state !== "asleep") return null;
  return (
    <Notice tone={state === "asleep" ? "idle" : "info"} title={t(`state.${stateWord(deployment)}`)}>
      {because}
      {next ? <Next next={next} /> : null}
    </Notice>
  );
}

function Next({ next }: { next: NonNullable<Deployment["next"]> }) {
  const { t, lookup, locale } = useI18n();
  const what = lookup(`phase.${next.code}`) ?? lookup(`next.${next.code}`) ?? (next.message || next.code);
  const text = locale === "en" && next.message !== "" ? next.message : what;
  return (
    <p>
      {t("deployment.next")}: {next.usual_seconds === null ? text : t("deployment.nextUsually", { what: text, duration: duration(next.usual_seconds * 1000) })}
    </p>
  );
}

function Configuration({ deployment }: { deployment: Deployment }) {
  const { t, locale } = useI18n();
  const { revision } = deployment;
  return (
    <Card title={t("deployment.configuration")}>
      <Facts
        items={[
          [t("deployments.model"), `${deployment.model} v${deployment.version}`],
          [t("deployments.revision"), t("deployment.rev", { number: String(revision.number) })],
          ...(deployment.beside === null ? [] : [[t("deployment.beside"), deployment.beside] as const]),
          ...(deployment.adapters.length === 0 ? [] : [[t("deployment.adapters"), deployment.adapters.join(", ")] as const]),
          [t("plan.engine"), revision.engine],
          [t("plan.artefact"), revision.quantization],
          [t("plan.tier"), revision.tier],
          [t("plan.context"), t("models.contextTokens", { n: revision.context_length })],
          [t("plan.slots"), revision.slots],
          [t("plan.threads"), revision.threads],
          [t("plan.replicas"), revision.replicas],
          [t("deployment.memory"), bytes(revision.memory, locale)],
        ]}
      />
    </Card>
  );
}

function Replicas({ deployment }: { deployment: Deployment }) {
  const { t, locale, lookup } = useI18n();
  const cause = useCause();
  return (
    <Card title={t("deployment.replicas")}>
      {deployment.replicas.length === 0 ? (
        <p className="muted">{t("deployment.noReplicas")}</p>
      ) : (
        <Table
          caption={t("deployment.replicas")}
          rows={deployment.replicas}
          rowKey={(each) => each.id}
          columns={[
            { head: t("deployment.replica"), cell: (each) => <code>{shortName(each.name)}</code> },
            { head: t("deployment.phase"), cell: (each) => lookup(`phase.${each.phase}`) ?? each.phase },
            { head: t("deployments.revision"), cell: (each) => each.revision, end: true },
            { head: t("deployments.since"), cell: (each) => dateTime(each.ready_at ?? each.started_at, locale) },
            { head: t("deployment.cause"), cell: (each) => (each.reason ? cause(each.reason, each.message) : "–") },
          ]}
        />
      )}
    </Card>
  );
}
