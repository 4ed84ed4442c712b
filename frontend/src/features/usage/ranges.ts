/** Ranges of whole days in the organisation's reporting zone, as half-open intervals of instants. Pure. */
import type { UsageGroupBy } from "@/shared/api/types";
import { addDays, dayIn, startOfDay } from "@/shared/format/time";

const HOUR_MS = 3_600_000;

export const RANGES = ["today", "7d", "30d", "month", "lastMonth"] as const;
export type Range = (typeof RANGES)[number];

export function isRange(text: string | null): text is Range {
  return RANGES.some((range) => range === text);
}

export function interval(range: Range, now: number, zone: string): { from: string; to: string } {
  const today = dayIn(now, zone);
  const month = `${today.slice(0, 7)}-01`;
  const tomorrow = addDays(today, 1);
  const days: Record<Range, [string, string]> = {
    today: [today, tomorrow],
    "7d": [addDays(today, -6), tomorrow],
    "30d": [addDays(today, -29), tomorrow],
    month: [month, nextMonth(month)],
    lastMonth: [`${addDays(month, -1).slice(0, 7)}-01`, month],
  };
  const [from, to] = days[range];
  return { from: startOfDay(from, zone).toISOString(), to: startOfDay(to, zone).toISOString() };
}

function nextMonth(first: string): string {
  return `${addDays(first, 31).slice(0, 7)}-01`;
}

/** The filter that gives exactly a group's requests. Days are keyed by their date in the organisation's zone, hours by their first instant. */
export function filterFor(groupBy: UsageGroupBy, group: string, whole: { from: string; to: string }, zone: string): Record<string, string> {
  switch (groupBy) {
    case "day":
      return { from: startOfDay(group, zone).toISOString(), to: startOfDay(addDays(group, 1), zone).toISOString() };
    case "hour":
      return { from: group, to: new Date(Date.parse(group) + HOUR_MS).toISOString() };
    default:
      return { ...whole, [groupBy]: group };
  }
}
