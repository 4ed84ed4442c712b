import { useQuery } from "@tanstack/react-query";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Deployment, DeploymentStatus } from "@/shared/api/types";
import { duration } from "@/shared/format/number";
import { dateTime } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { usePolling } from "@/shared/live/LiveProvider";
import { useOrg } from "@/shared/session";
import { Notice } from "@/shared/ui/Notice";
import { Card } from "@/shared/ui/Page";
import { isMoving } from "@/shared/ui/Status";
import { Table } from "@/shared/ui/Table";
import { shortName } from "./Timeline";

/** What it does now: its place in the queue, how far each start is, and what scaling decided and why. */
export function LiveStatus({ deployment }: { deployment: Deployment }) {
  const { slug } = useOrg();
  const idle = usePolling();
  const busy = usePolling(true);
  const { data } = useQuery({
    queryKey: keys.deploymentStatus(slug, deployment.name),
    queryFn: () => api.deploymentStatus(slug, deployment.name),
    refetchInterval: isMoving(deployment.state) ? busy : idle,
  });
  if (!data) return null;
  return (
    <>
      {data.queue ? <Queue queue={data.queue} /> : null}
      {data.starts.length > 0 ? <Starts starts={data.starts} /> : null}
      {data.least !== data.most || data.scaling.length > 0 ? <Scaling status={data} /> : null}
    </>
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
            {each.percent === null ? "" : ` ${each.percent} %`} <span className="muted">{t("live.ready", { duration: duration(each.usually_ready_in_seconds * 1000) })}</span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function Scaling({ status }: { status: DeploymentStatus }) {
  const { t, lookup, locale } = useI18n();
  const { ready, wanted, least, most } = status;
  return (
    <Card title={t("scaling.title")}>
      <p>{t("scaling.now", { ready, wanted, least, most })}</p>
      {status.scaling.length === 0 ? (
        <p className="muted">{t("scaling.none")}</p>
      ) : (
        <Table
          caption={t("scaling.title")}
          rows={status.scaling}
          rowKey={(each) => each.at}
          columns={[
            { head: t("deployment.when"), cell: (each) => dateTime(each.at, locale) },
            { head: t("plan.replicas"), cell: (each) => t("scaling.change", { before: each.before, after: each.after }), end: true },
            { head: t("scaling.why"), cell: (each) => lookup(`scaling.reason.${each.reason}`) ?? each.reason },
          ]}
        />
      )}
    </Card>
  );
}
