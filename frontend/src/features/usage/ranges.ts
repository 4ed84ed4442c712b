/** Ranges of whole days in the organisation's reporting zone, as half-open intervals of instants. Pure. */
import { addDays, dayIn, startOfDay } from "@/shared/format/time";

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
