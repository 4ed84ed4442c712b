/** How a new revision takes over, as typed. Pure. */
import type { DeploymentChange } from "@/shared/api/types";

export const STRATEGIES = ["rolling", "canary", "shadow"] as const;

export interface Takeover {
  strategy: (typeof STRATEGIES)[number];
  steps: string; // canary: percents, rising
  percent: string; // shadow: of the requests that are copied
  hold: string; // seconds; "" = the strategy's own
  automatic: boolean;
  reason: string;
}

export const ROLLING: Takeover = { strategy: "rolling", steps: "5, 25, 50", percent: "10", hold: "", automatic: true, reason: "" };

function whole(text: string, min: number, max: number): number | null {
  if (!/^\d{1,7}$/.test(text.trim())) return null;
  const value = Number.parseInt(text, 10);
  return value >= min && value <= max ? value : null;
}

function readSteps(text: string): number[] | null {
  const steps = text.split(/[\s,，、%]+/).filter((part) => part !== "").map((part) => whole(part, 1, 100));
  const rising = steps.every((step, index) => step !== null && step > (steps[index - 1] ?? 0));
  return rising && steps.length > 0 && steps.length <= 20 ? steps.filter((step) => step !== null) : null;
}

/** The first field that means nothing. */
export function wrongIn({ strategy, steps, percent, hold }: Takeover): "steps" | "percent" | "hold" | null {
  if (strategy === "canary" && readSteps(steps) === null) return "steps";
  if (strategy === "shadow") return whole(percent, 1, 100) === null ? "percent" : null;
  return hold.trim() !== "" && whole(hold, 0, 604_800) === null ? "hold" : null;
}

/** What of it is sent with a change; nothing where nothing was chosen. */
export function toRollout({ strategy, steps, percent, hold, automatic, reason }: Takeover): Pick<DeploymentChange, "rollout" | "reason"> {
  const rollout: NonNullable<DeploymentChange["rollout"]> = {};
  if (strategy !== "rolling") rollout.strategy = strategy;
  if (strategy === "canary") rollout.steps = readSteps(steps) ?? [];
  if (strategy === "shadow") rollout.shadow_percent = whole(percent, 1, 100) ?? 10;
  const held = strategy === "shadow" ? null : whole(hold, 0, 604_800);
  if (held !== null) rollout.hold_seconds = held;
  if (!automatic) rollout.automatic = false;
  return { ...(Object.keys(rollout).length > 0 ? { rollout } : {}), ...(reason.trim() === "" ? {} : { reason: reason.trim() }) };
}
