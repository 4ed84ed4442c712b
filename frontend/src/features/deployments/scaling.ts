/** The fields of how a deployment is scaled, as typed, and what they mean. Pure. */
import type { DeploymentScaling, NewPeak } from "@/shared/api/types";

export interface Range {
  min: number;
  max: number;
}

export const RANGES = {
  sleep: { min: 1, max: 30 * 86_400 },
  stabilisation: { min: 30, max: 7_200 },
  headRoom: { min: 1, max: 5 },
  share: { min: 50, max: 99.99 }, // percent
  replicas: { min: 1, max: 16 },
  rate: { min: 0.001, max: 1_000_000 },
} as const satisfies Record<string, Range>;

/** Null: no number within the range. */
export function readNumber(text: string, { min, max }: Range): number | null {
  if (!/^\d{1,9}(\.\d{1,6})?$/.test(text.trim())) return null;
  const value = Number.parseFloat(text);
  return value >= min && value <= max ? value : null;
}

export interface PeakDraft {
  start: string; // as an input of type datetime-local has it, in the reader's time zone
  end: string;
  every: "once" | "day" | "week";
  unit: "replicas" | "rate";
  amount: string;
}

export const NEW_PEAK: PeakDraft = { start: "", end: "", every: "day", unit: "replicas", amount: "" };

/** What stands in an input of type datetime-local, of this instant. */
export function localInput(iso: string): string {
  const at = new Date(iso);
  const two = (value: number) => String(value).padStart(2, "0");
  return `${String(at.getFullYear())}-${two(at.getMonth() + 1)}-${two(at.getDate())}T${two(at.getHours())}:${two(at.getMinutes())}`;
}

export function draftsOf({ peaks }: Pick<DeploymentScaling, "peaks">): PeakDraft[] {
  return peaks.map((peak) => ({
    start: localInput(peak.start),
    end: localInput(peak.end),
    every: peak.every === "day" || peak.every === "week" ? peak.every : "once",
    unit: peak.replicas === null ? "rate" : "replicas",
    amount: String(peak.replicas ?? peak.requests_per_second ?? ""),
  }));
}

/** Null: a field is missing, or it ends before it starts. */
export function toPeak({ start, end, every, unit, amount }: PeakDraft): NewPeak | null {
  const from = new Date(start);
  const until = new Date(end);
  const value = readNumber(amount, unit === "replicas" ? RANGES.replicas : RANGES.rate);
  if (Number.isNaN(from.getTime()) || Number.isNaN(until.getTime()) || until <= from || value === null) return null;
  if (unit === "replicas" && !Number.isInteger(value)) return null;
  const when = { start: from.toISOString(), end: until.toISOString(), every };
  return unit === "replicas" ? { ...when, replicas: value } : { ...when, requests_per_second: value };
}
