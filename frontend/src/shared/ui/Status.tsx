import type { DeploymentState } from "../api/types";
import { useI18n } from "../i18n";
import { Icon, type IconName, type Tone } from "./Icon";

const STATES: Record<DeploymentState, [Tone, IconName]> = {
  queued: ["info", "clock"],
  starting: ["info", "spinner"],
  ready: ["ok", "check"],
  updating: ["info", "spinner"],
  degraded: ["warn", "alert"],
  asleep: ["idle", "clock"],
  stopping: ["idle", "spinner"],
  paused: ["idle", "pause"],
  failed: ["danger", "cross"],
  deleted: ["idle", "cross"],
};

/** Always icon and word. */
export function Badge({ tone, icon, children }: { tone: Tone; icon: IconName; children: string }) {
  return (
    <span className="badge" data-tone={tone}>
      <Icon name={icon} />
      {children}
    </span>
  );
}

/** A start that follows a sleep has a word of its own. */
export function stateWord({ state, reason }: { state: DeploymentState; reason: string }): DeploymentState | "waking" {
  return state === "starting" && reason === "waking" ? "waking" : state;
}

export function StateBadge({ deployment }: { deployment: { state: DeploymentState; reason: string } }) {
  const { t } = useI18n();
  const [tone, icon] = STATES[deployment.state];
  return <Badge tone={tone} icon={icon}>{t(`state.${stateWord(deployment)}`)}</Badge>;
}

const MOVING: readonly DeploymentState[] = ["queued", "starting", "updating", "stopping"];

export function isMoving(state: DeploymentState): boolean {
  return MOVING.includes(state);
}
