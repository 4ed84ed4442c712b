import type { DeploymentStatus } from "@/shared/api/types";
import { duration, rough } from "@/shared/format/number";
import { dateTime } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { Card } from "@/shared/ui/Page";
import { Facts, Table } from "@/shared/ui/Table";

type Decision = NonNullable<DeploymentStatus["decision"]>;
type Reason = Decision["reasons"][number];

/** How many replicas there are to be, what that rests on, and how it changed before. */
export function ScalingCard({ status }: { status: DeploymentStatus }) {
  const { t, lookup, locale } = useI18n();
  const { ready, wanted, least, most } = status;
  return (
    <Card title={t("scaling.title")}>
      <div className="stack">
        <p>{t("scaling.now", { ready, wanted, least, most })}</p>
        {status.decision ? <Latest decision={status.decision} /> : null}
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
              { head: t("scaling.why"), cell: (each) => lookup(`scaling.code.${each.reason}`) ?? each.reason },
            ]}
          />
        )}
      </div>
    </Card>
  );
}

function Latest({ decision }: { decision: Decision }) {
  const { t, locale } = useI18n();
  const because = useBecause();
  const { figures } = decision;
  const number = (value: number) => rough(value, locale);
  return (
    <>
      <p>
        <strong>{t("scaling.latest", { at: dateTime(decision.created_at, locale), n: decision.desired })}</strong>
      </p>
      <ul>
        {decision.reasons.map((each) => (
          <li key={each.code}>{because(each)}</li>
        ))}
      </ul>
      <Facts
        items={[
          [t("scaling.rate"), t("scaling.perSecond", { value: number(figures.rate) })],
          [t("scaling.forecast"), t("scaling.perSecond", { value: number(figures.forecast) })],
          [t("scaling.capacity"), figures.capacity === null ? t("plan.stale.unknown") : t("scaling.perSecond", { value: number(figures.capacity) })],
          [t("scaling.headRoom"), `× ${number(figures.head_room)}`],
          [t("scaling.inFlight"), figures.in_flight],
          [t("scaling.queued"), figures.queued],
          [t("scaling.coldStart"), duration(figures.cold_start_seconds * 1000)],
        ]}
      />
    </>
  );
}

/** A reason in the reader's language; one that is new here as the server says it. */
function useBecause(): (reason: Reason) => string {
  const { lookup, locale } = useI18n();
  return ({ code, text, values }) => {
    const shown = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, rough(value, locale)]));
    return lookup(`scaling.because.${code}`, shown) ?? text;
  };
}
