import type { Deployment, Replica } from "@/shared/api/types";
import { bytes, duration } from "@/shared/format/number";
import { type PlainKey, useI18n } from "@/shared/i18n";
import { Icon, type IconName, type Tone } from "@/shared/ui/Icon";
import { Notice } from "@/shared/ui/Notice";
import { Card } from "@/shared/ui/Page";
import { useNow } from "@/shared/ui/useNow";
import { useCause } from "./cause";
import { startupTime, type StepState, timeline, type TimelineRow } from "./timeline";

const LOOK: Record<StepState, [IconName, Tone]> = { done: ["check", "ok"], skipped: ["check", "ok"], running: ["spinner", "info"], failed: ["cross", "danger"], waiting: ["circle", "idle"] };
const WORDS: Record<StepState, PlainKey> = { done: "start.done", skipped: "start.done", running: "state.starting", failed: "state.failed", waiting: "start.open" };
const TICK_MS = 500;

/** The way of one replica to its first token: each step with what it took and what it usually takes. */
export function Timeline({ replica, usual, basis }: { replica: Replica; usual: Deployment["usual"]; basis: Deployment["usual_basis"] }) {
  const { t } = useI18n();
  const cause = useCause();
  const moving = replica.ready_at === null && replica.ended_at === null;
  const now = useNow(moving ? TICK_MS : null);
  const elapsed = duration(startupTime(replica, now));
  const summary = replica.ready_at !== null ? t("deployment.startupTook", { elapsed }) : moving ? t("deployment.startupElapsed", { elapsed }) : t("deployment.startupEnded", { elapsed });
  return (
    <Card title={t("deployment.startup", { name: shortName(replica.name) })} actions={<span className="num muted">{summary}</span>}>
      <ol className="phases">
        {timeline(replica, usual, now).map((row) => (
          <Row key={row.step} row={row} basis={basis} />
        ))}
      </ol>
      {replica.reason && replica.phase === "failed" ? (
        <Notice tone="danger" title={t("deployment.cause")}>
          <p>{cause(replica.reason, replica.message)}</p>
        </Notice>
      ) : null}
    </Card>
  );
}

function Row({ row, basis }: { row: TimelineRow; basis: Deployment["usual_basis"] }) {
  const { t, locale } = useI18n();
  const [icon, tone] = LOOK[row.state];
  const known = row.done !== null && row.total !== null && row.total > 0;
  return (
    <li className="phase" data-state={row.state}>
      <Icon name={icon} tone={tone} />
      <span>
        {t(`phase.${row.step}`)} <span className="visually-hidden">{t(WORDS[row.state])}</span>
      </span>
      <span>{row.elapsed === null ? "" : duration(row.elapsed)}</span>
      <span className="muted">{row.state === "skipped" ? t("deployment.notNeeded") : row.usual === null ? t("deployment.firstHere") : t(basis === "measured" ? "common.usually" : "common.estimated", { duration: duration(row.usual) })}</span>
      <span className="stack-s">
        {known && row.state === "running" ? (
          <>
            <span>{`${bytes(row.done, locale)} / ${bytes(row.total, locale)}`}</span>
            <span className="meter"><div style={{ width: `${Math.min(100, ((row.done ?? 0) / (row.total ?? 1)) * 100)}%` }} /></span>
          </>
        ) : known ? (
          <span className="muted">{bytes(row.total, locale)}</span>
        ) : null}
        {row.longer ? <span className="tone-warn">{t("deployment.longer")}</span> : null}
      </span>
    </li>
  );
}

/** Names end in "<revision>-<ordinal>-<attempt>"; the deployment's id before it says nothing here. */
export function shortName(name: string): string {
  return `r-${name.split("-").slice(-3).join("-")}`;
}
