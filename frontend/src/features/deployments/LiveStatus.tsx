import type { DeploymentStatus } from "@/shared/api/types";
import { duration } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";
import { Notice } from "@/shared/ui/Notice";
import { Card } from "@/shared/ui/Page";
import { ScalingCard } from "./ScalingCard";
import { shortName } from "./Timeline";
import { Preparing } from "./Preparing";
import type { Watched } from "./useStatus";

/** What it does now: its place in the queue, how far each start is, and what scaling decided and why. */
export function LiveStatus({ watched: { status, streamed } }: { watched: Watched }) {
  const { t } = useI18n();
  if (!status) return null;
  return (
    <div className="stack" data-live={streamed ? "stream" : "polling"}>
      {streamed ? null : <p className="muted">{t("live.polled")}</p>}
      {status.preparation ? <Preparing preparation={status.preparation} /> : null}
      {status.queue ? <Queue queue={status.queue} /> : null}
      {status.starts.length > 0 ? <Starts starts={status.starts} /> : null}
      {status.least !== status.most || status.scaling.length > 0 ? <ScalingCard status={status} /> : null}
    </div>
  );
}

function Queue({ queue }: { queue: NonNullable<DeploymentStatus["queue"]> }) {
  const { t } = useI18n();
  const usual = queue.usual_seconds === null ? t("live.queue.unknown") : t("live.queue.usual", { duration: duration(queue.usual_seconds * 1000) });
  return (
    <Notice tone="info" title={t("live.queue")}>
      <p role="status">
        {t("live.queue.place", { position: queue.position, length: queue.length })} · {usual}
      </p>
    </Notice>
  );
}

function Starts({ starts }: { starts: DeploymentStatus["starts"] }) {
  const { t, lookup } = useI18n();
  return (
    <Card title={t("live.title")}>
      <ul className="stack">
        {starts.map((each) => (
          <li key={each.replica}>
            {t("live.start", { replica: shortName(each.replica), phase: lookup(`phase.${each.phase}`) ?? each.phase })}
            {each.percent === null ? "" : ` ${each.percent} %`}{" "}
            {each.percent === null ? null : <meter min={0} max={100} value={each.percent} aria-label={lookup(`phase.${each.phase}`) ?? each.phase} />} <span className="muted">· {each.usual_seconds === null ? "" : `${t("live.usual", { duration: duration(each.usual_seconds * 1000) })} · `}{t("live.ready", { duration: duration(each.usually_ready_in_seconds * 1000) })}</span>
          </li>
        ))}
      </ul>
    </Card>
  );
}
