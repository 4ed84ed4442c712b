/** Instants are shown in the organisation's reporting zone (usage, statements) or the reader's own (all else). */
import { type Locale, TAG, UNKNOWN } from "./number";

export function millis(at: string | number): number {
  return typeof at === "number" ? at * 1000 : Date.parse(at);
}

export function dateTime(at: string | number | null | undefined, locale: Locale, timeZone?: string): string {
  if (at === null || at === undefined) return UNKNOWN;
  return new Intl.DateTimeFormat(TAG[locale], {
    year: "numeric",
    month: "short",
    day: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hourCycle: "h23",
    timeZoneName: "short",
    ...(timeZone === undefined ? {} : { timeZone }),
  }).format(millis(at));
}

/** For narrow columns whose head or caption names year and zone. */
export function shortDateTime(at: string, locale: Locale, timeZone?: string): string {
  return new Intl.DateTimeFormat(TAG[locale], {
    month: "short",
    day: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hourCycle: "h23",
    ...(timeZone === undefined ? {} : { timeZone }),
  }).format(millis(at));
}

export function clock(at: string | number, locale: Locale): string {
  return new Intl.DateTimeFormat(TAG[locale], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }).format(millis(at));
}

export function monthName(period: string, locale: Locale): string {
  const at = Date.parse(`${period}-15T12:00:00Z`);
  if (Number.isNaN(at)) return period;
  return new Intl.DateTimeFormat(TAG[locale], { year: "numeric", month: "long", timeZone: "UTC" }).format(at);
}

const AGO: [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400_000],
  ["hour", 3_600_000],
  ["minute", 60_000],
  ["second", 1000],
];

export function relative(at: string | number, now: number, locale: Locale): string {
  const difference = millis(at) - now;
  const format = new Intl.RelativeTimeFormat(TAG[locale], { numeric: "auto", style: "short" });
  for (const [unit, size] of AGO) {
    if (Math.abs(difference) >= size) return format.format(Math.round(difference / size), unit);
  }
  return format.format(0, "second");
}

/** Calendar day, "2026-11-30", of an instant in a zone. */
export function dayIn(at: number, timeZone: string): string {
  const parts = new Intl.DateTimeFormat("en-CA", { timeZone, year: "numeric", month: "2-digit", day: "2-digit" }).formatToParts(at);
  const part = (type: string) => parts.find((each) => each.type === type)?.value ?? "";
  return `${part("year")}-${part("month")}-${part("day")}`;
}

export function addDays(day: string, days: number): string {
  return new Date(Date.parse(`${day}T00:00:00Z`) + days * 86_400_000).toISOString().slice(0, 10);
}

/** The instant at which a calendar day begins in a zone, daylight saving included. */
export function startOfDay(day: string, timeZone: string): Date {
  const guess = Date.parse(`${day}T00:00:00Z`);
  // Two rounds settle it: the offset at the guess may differ from the offset at the answer.
  let at = guess - offsetAt(guess, timeZone);
  at = guess - offsetAt(at, timeZone);
  return new Date(at);
}

function offsetAt(at: number, timeZone: string): number {
  const parts = new Intl.DateTimeFormat("en-US", {
    timeZone,
    hourCycle: "h23",
    year: "numeric",
    month: "numeric",
    day: "numeric",
    hour: "numeric",
    minute: "numeric",
    second: "numeric",
  }).formatToParts(at);
  const part = (type: string) => Number(parts.find((each) => each.type === type)?.value ?? "0");
  const local = Date.UTC(part("year"), part("month") - 1, part("day"), part("hour"), part("minute"), part("second"));
  return local - Math.floor(at / 1000) * 1000;
}
