import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { StatementSummary } from "@/shared/api/types";
import { statementMoney } from "@/shared/format/money";
import { dateTime, monthName } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Loaded } from "@/shared/ui/Loaded";
import { Empty, Page } from "@/shared/ui/Page";
import { Badge } from "@/shared/ui/Status";
import { Table } from "@/shared/ui/Table";
import { useOrganisation } from "@/features/usage/useUsage";

/** Every month's statement; the overview and the usage page show these totals too, so that a figure is the same everywhere. */
export function useStatements(enabled = true) {
  const { slug } = useOrg();
  return useQuery({ queryKey: keys.statements(slug), queryFn: () => api.statements(slug), refetchInterval: 10_000, enabled });
}

export default function StatementsPage() {
  const { t, locale } = useI18n();
  const { org, slug } = useOrg();
  const zone = useOrganisation().data?.time_zone;
  const statements = useStatements();
  return (
    <Page title={t("statements.title")} scope={org.name} lead={t("statements.lead")}>
      <Loaded query={statements}>
        {({ items }) =>
          items.length === 0 ? (
            <Empty text={t("statements.empty")} />
          ) : (
            <Table
              caption={t("statements.title")}
              rows={items}
              rowKey={(each) => each.period}
              columns={[
                { head: t("statements.period"), cell: (each) => <Link href={`/o/${slug}/statements/${each.period}`}>{monthName(each.period, locale)}</Link> },
                { head: t("common.status"), cell: (each) => <StatementStatus status={each.status} /> },
                { head: t("usage.range"), cell: (each) => t("statement.range", { from: dateTime(each.starts_at, locale, zone), to: dateTime(each.ends_at, locale, zone) }) },
                { head: t("statements.total"), end: true, cell: (each) => statementMoney(each.total_micro, each.currency) },
              ]}
            />
          )
        }
      </Loaded>
    </Page>
  );
}

export function StatementStatus({ status }: { status: StatementSummary["status"] }) {
  const { t } = useI18n();
  return status === "open" ? <Badge tone="info" icon="clock">{t("statements.open")}</Badge> : <Badge tone="ok" icon="check">{t("statements.closed")}</Badge>;
}
