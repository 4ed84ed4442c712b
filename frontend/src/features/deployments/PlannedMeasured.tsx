import type { Deployment } from "@/shared/api/types";
import { bytes, count, duration, rough } from "@/shared/format/number";
import { dateTime } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { Card } from "@/shared/ui/Page";
import { Table } from "@/shared/ui/Table";

type Check = Deployment["planned_against_measured"][number];

/** What the plan said beside what requests really got: with unit, number of requests and window. */
export function PlannedMeasured({ checks }: { checks: readonly Check[] }) {
  const { t, lookup, locale } = useI18n();
  const value = ({ metric }: Check, amount: number | null) =>
    amount === null ? t("plan.stale.unknown") : metric === "memory" ? bytes(amount, locale) : metric === "ttft_ms" ? duration(amount) : t("plan.speedUnit", { value: rough(amount, locale) });
  return (
    <Card title={t("measured.title")}>
      {checks.length === 0 ? (
        <p className="muted">{t("measured.none")}</p>
      ) : (
        <Table
          caption={t("measured.title")}
          rows={checks}
          rowKey={(each) => each.metric}
          columns={[
            { head: t("measured.figure"), cell: (each) => lookup(`plan.field.${each.metric}`) ?? each.metric },
            { head: t("measured.planned"), cell: (each) => value(each, each.planned), end: true },
            { head: t("measured.expected"), cell: (each) => value(each, each.expected), end: true },
            { head: t("measured.measured"), cell: (each) => <strong>{value(each, each.measured)}</strong>, end: true },
            { head: t("measured.n"), cell: (each) => (each.enough ? count(each.n, locale) : t("measured.few", { n: each.n })), end: true },
            { head: t("measured.window"), cell: (each) => `${dateTime(each.window_start, locale)} – ${dateTime(each.window_end, locale)}` },
          ]}
        />
      )}
    </Card>
  );
}
