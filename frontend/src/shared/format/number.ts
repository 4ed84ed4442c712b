/** Counts, sizes, speeds. A value that is not known is "–", never 0. */
export type Locale = "en" | "zh";
export const UNKNOWN = "–";

/** en-GB writes "30 Nov 2026" and 24-hour times. */
export const TAG: Record<Locale, string> = { en: "en-GB", zh: "zh-CN" };

export function count(value: number | null | undefined, locale: Locale): string {
  return value === null || value === undefined ? UNKNOWN : new Intl.NumberFormat(TAG[locale]).format(value);
}

/** 12.3M in English, 1,234.6万 in Chinese. */
export function compact(value: number | null | undefined, locale: Locale): string {
  if (value === null || value === undefined) return UNKNOWN;
  const tag = locale === "en" ? "en-US" : TAG.zh;
  return new Intl.NumberFormat(tag, { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

/** 0.934 as 93%: shares that were measured are not known better. */
export function share(value: number | null | undefined, locale: Locale): string {
  if (value === null || value === undefined) return UNKNOWN;
  return new Intl.NumberFormat(TAG[locale], { style: "percent", maximumFractionDigits: 0 }).format(value);
}

/** Three significant digits: a speed or an estimate is not known better. */
export function rough(value: number | null | undefined, locale: Locale): string {
  if (value === null || value === undefined) return UNKNOWN;
  const options: Intl.NumberFormatOptions = Math.abs(value) >= 100 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 };
  return new Intl.NumberFormat(TAG[locale], options).format(value);
}

const STEPS = ["B", "KiB", "MiB", "GiB", "TiB"] as const;

export function bytes(value: number | null | undefined, locale: Locale): string {
  if (value === null || value === undefined) return UNKNOWN;
  let amount = value;
  let step = 0;
  while (Math.abs(amount) >= 1024 && step < STEPS.length - 1) {
    amount /= 1024;
    step += 1;
  }
  const fraction = step === 0 || amount >= 100 ? 0 : 1;
  const text = new Intl.NumberFormat(TAG[locale], { minimumFractionDigits: fraction, maximumFractionDigits: fraction }).format(amount);
  return `${text} ${STEPS[step] ?? "B"}`;
}

/** 131 ms · 4.2 s · 4 min 12 s · 2 h 5 min · 3 d 4 h. Units stay Latin in both languages. */
export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return UNKNOWN;
  const value = Math.max(0, ms);
  if (value < 999.5) return `${Math.round(value)} ms`;
  if (value < 59_950) return `${(value / 1000).toFixed(1)} s`;
  const seconds = Math.round(value / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}
