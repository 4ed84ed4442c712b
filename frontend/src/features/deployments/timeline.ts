/** From a replica's phase timings to the rows of its timeline. Pure; all times in milliseconds. */
import type { Replica } from "@/shared/api/types";
import { millis } from "@/shared/format/time";

export const STEPS = ["fetching", "verifying", "loading", "warming"] as const;
export type Step = (typeof STEPS)[number];
export type StepState = "done" | "skipped" | "running" | "failed" | "waiting";

export interface TimelineRow {
  step: Step;
  state: StepState;
  elapsed: number | null;
  usual: number | null;
  longer: boolean; // runs past what is usual
  done: number | null; // bytes
  total: number | null;
}

/** Half as long again as usual, and at least two seconds more, is worth a word. */
const LONGER = 1.5;
const LEAST_MS = 2000;

export function timeline(replica: Replica, usual: Record<string, number>, now: number): TimelineRow[] {
  const over = replica.ended_at !== null || replica.phase === "failed" || replica.phase === "stopped";
  return STEPS.map((step) => {
    const timing = [...replica.phases].reverse().find((phase) => phase.phase === step);
    const usualSeconds = usual[step];
    const usualMs = usualSeconds === undefined ? null : usualSeconds * 1000;
    if (timing === undefined) {
      const state = laterBegan(replica, step) ? "skipped" : "waiting";
      return { step, state, elapsed: null, usual: usualMs, longer: false, done: null, total: null };
    }
    const stop = timing.ended_at ?? (over ? replica.ended_at : null);
    const elapsed = Math.max(0, (stop === null ? now : millis(stop)) - millis(timing.started_at));
    const state: StepState = timing.ended_at !== null ? (wasLast(replica, step) ? "failed" : "done") : over ? "failed" : "running";
    const longer = state === "running" && usualMs !== null && elapsed > Math.max(usualMs * LONGER, usualMs + LEAST_MS);
    return { step, state, elapsed, usual: usualMs, longer, done: timing.done, total: timing.total };
  });
}

/** A step that was not needed, such as fetching files that the machine has, leaves no timing. */
function laterBegan(replica: Replica, step: Step): boolean {
  const later = STEPS.slice(STEPS.indexOf(step) + 1);
  return replica.ready_at !== null || replica.phases.some((phase) => later.some((each) => each === phase.phase));
}

/** A failed replica fell in the last step that it began. */
function wasLast(replica: Replica, step: Step): boolean {
  if (replica.phase !== "failed" || replica.ready_at !== null) return false;
  const begun = STEPS.filter((each) => replica.phases.some((phase) => phase.phase === each));
  return begun.at(-1) === step;
}

/** From the first sign of the replica to its first token, its end, or now. */
export function startupTime(replica: Replica, now: number): number {
  const stop = replica.ready_at ?? replica.ended_at;
  return Math.max(0, (stop === null ? now : millis(stop)) - millis(replica.started_at));
}
