import type { Deployment, Rollout } from "@/shared/api/types";
import { count, duration } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Card } from "@/shared/ui/Page";
import { Table } from "@/shared/ui/Table";
import { useCause } from "./cause";
import { useRollout } from "./useRollout";

const OPEN = ["progressing", "paused", "watching"];

/** Whether it is worth a place: under way, or gone back, which has to be explained. */
export function isTold(rollout: Deployment["rollout"]): rollout is Rollout {
  return rollout !== null && rollout.base !== null && (OPEN.includes(rollout.status) || rollout.status === "rolled_back");
}

/** Whether the new revision is to take everything. */
export function isFull({ strategy, step, steps }: Pick<Rollout, "strategy" | "step" | "steps">): boolean {
  return strategy === "rolling" || step >= Math.max(1, steps.length);
}

/** A revision on its way: which share it has, how it does beside the one before, and what can be done about it. */
export function RolloutCard({ deployment, rollout }: { deployment: Deployment; rollout: Rollout }) {
  const { t, lookup } = useI18n();
  const { can } = useOrg();
  const cause = useCause();
  const act = useRollout(deployment.name);
  const open = OPEN.includes(rollout.status);
  const promotable = open && !isFull(rollout);
  const holdable = rollout.status === "progressing";
  return (
    <Card title={t("rollout.title", { number: String(rollout.revision) })} actions={<span className="muted">{lookup(`rollout.${rollout.status}`) ?? rollout.status}</span>}>
      <div className="stack">
        <p>{useShare(rollout)}</p>
        {open ? <p className="muted">{t(rollout.automatic ? "rollout.automatic" : "rollout.byHand")}</p> : null}
        {rollout.reason !== "" ? <p role="status">{cause(rollout.reason, rollout.message)}</p> : null}
        <Sides rollout={rollout} />
        {open && can("deployments.write") ? (
          <div className="row">
            {promotable ? <Button kind="primary" busy={act.isPending} onClick={() => act.mutate("promote")}>{t("rollout.promote")}</Button> : null}
            {rollout.status === "paused" ? <Button busy={act.isPending} onClick={() => act.mutate("goOn")}>{t("rollout.goOn")}</Button> : null}
            {holdable ? <Button busy={act.isPending} onClick={() => act.mutate("hold")}>{t("rollout.hold")}</Button> : null}
            <Button busy={act.isPending} onClick={() => act.mutate({ back: undefined })}>{t("rollout.back")}</Button>
          </div>
        ) : null}
        {act.isError ? <ErrorNotice error={act.error} /> : null}
      </div>
    </Card>
  );
}

function useShare(rollout: Rollout): string {
  const { t } = useI18n();
  if (rollout.strategy === "rolling") return t("rollout.rolling");
  if (isFull(rollout)) return t("rollout.full");
  if (rollout.strategy === "shadow") return t("rollout.shadow", { percent: rollout.shadow_percent });
  return t("rollout.share", { percent: rollout.steps[rollout.step] ?? 100, step: rollout.step + 1, steps: rollout.steps.length });
}

function Sides({ rollout }: { rollout: Rollout }) {
  const { t, locale } = useI18n();
  if (rollout.measured === null) return null;
  const { old, new: fresh } = rollout.measured;
  const rows = [
    { name: t("rollout.before", { number: String(rollout.base) }), side: old },
    { name: t("rollout.new", { number: String(rollout.revision) }), side: fresh },
  ];
  return (
    <Table
      caption={t("rollout.title", { number: String(rollout.revision) })}
      rows={rows}
      rowKey={(each) => each.name}
      columns={[
        { head: t("rollout.side"), cell: (each) => each.name },
        { head: t("rollout.requests"), cell: (each) => count(each.side.requests, locale), end: true },
        { head: t("rollout.failed"), cell: (each) => count(each.side.failed, locale), end: true },
        { head: t("rollout.first"), cell: (each) => (each.side.first_token_ms === null ? "–" : duration(each.side.first_token_ms)), end: true },
      ]}
    />
  );
}
