import { exactMoney } from "@/shared/format/money";
import { count, rough } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";
import { Notice } from "@/shared/ui/Notice";
import { Table } from "@/shared/ui/Table";
import type { Difference, Stale } from "./stale";

/** What changed between the plan that was seen and the one of now. The new plan stands beside it; Deploy confirms it. */
export function StaleNotice({ stale }: { stale: Stale }) {
  const { t } = useI18n();
  const priced = stale.differences.some((each) => each.field === "price_per_hour");
  const what = priced ? t("plan.stale.price") : stale.differences.length > 0 ? t("plan.stale.changed") : t("plan.stale.expired");
  return (
    <Notice tone="warn" title={t("plan.stale.title")} role="alert">
      <p>{what}</p>
      {stale.differences.length > 0 ? <Differences caption={t("plan.stale.title")} differences={stale.differences} currency={stale.currency} /> : null}
    </Notice>
  );
}

/** What two plans differ in, side by side. */
export function Differences({ caption, differences, currency }: { caption: string; differences: readonly Difference[]; currency: string }) {
  const { t, lookup, locale } = useI18n();
  const shown = ({ field }: Difference, value: unknown): string => {
    if (value === null || value === undefined) return t("plan.stale.unknown");
    if (field === "price_per_hour" && typeof value === "string") return exactMoney(value, currency);
    if (field === "ttft_ms" && typeof value === "number") return t("plan.ms", { value: rough(value, locale) });
    if (field === "tokens_per_second" && typeof value === "number") return t("plan.speedUnit", { value: rough(value, locale) });
    return typeof value === "number" ? count(value, locale) : typeof value === "string" ? value : JSON.stringify(value);
  };
  return (
    <Table
      caption={caption}
      rows={differences}
      rowKey={(each) => each.field}
      columns={[
        { head: t("plan.stale.what"), cell: (each) => lookup(`plan.field.${each.field}`) ?? each.field },
        { head: t("plan.stale.before"), cell: (each) => shown(each, each.before) },
        { head: t("plan.stale.after"), cell: (each) => <strong>{shown(each, each.after)}</strong> },
      ]}
    />
  );
}
