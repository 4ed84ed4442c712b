import type { PlanMessage } from "@/shared/api/types";
import { exactMoney } from "@/shared/format/money";
import { bytes, count, type Locale, rough } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";

const SIZES = new Set(["needed", "available", "short", "left", "each"]);
const MONEY = new Set(["price_unknown", "price_too_high", "higher_ceiling", "far_dearer", "dearer", "interaction_too_dear"]);

/** A parameter of the planner's reasons as people read it: bytes as GiB, money exact, the rest as numbers. */
export function paramText(code: string, name: string, value: unknown, locale: Locale, currency: string): string {
  if (typeof value === "number") {
    if (SIZES.has(name)) return bytes(value, locale);
    return Number.isInteger(value) ? count(value, locale) : rough(value, locale);
  }
  if (typeof value === "string") return MONEY.has(code) && /^\d+(\.\d+)?$/.test(value) ? exactMoney(value, currency) : value;
  return "–";
}

/** The planner's reasons in the reader's language; a code that is new here is told in the server's words. */
export function usePlanText(currency: string) {
  const { lookup, locale } = useI18n();
  return (kind: "reason" | "reject" | "change" | "survey" | "remedy", message: PlanMessage): string => {
    const values: Record<string, string> = {};
    for (const [name, value] of Object.entries(message.params)) {
      values[name] = (name === "value" && typeof value === "string" ? lookup(`quality.${value}`) : null) ?? paramText(message.code, name, value, locale, currency);
    }
    const own = lookup(`${kind}.${message.code}`, values);
    return own !== null && !/\{\w+\}/.test(own) ? own : message.message;
  };
}
