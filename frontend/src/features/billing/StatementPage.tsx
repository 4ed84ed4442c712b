import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useParams, useSearchParams } from "wouter";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import { url } from "@/shared/api/client";
import type { Statement, StatementLine } from "@/shared/api/types";
import { exactMoney, perMillion, statementMoney } from "@/shared/format/money";
import { count } from "@/shared/format/number";
import { monthName } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { Loaded } from "@/shared/ui/Loaded";
import { Notice } from "@/shared/ui/Notice";
import { Empty, Page } from "@/shared/ui/Page";
import { Name, Table } from "@/shared/ui/Table";
import { EventTable, nameOf } from "@/features/usage/EventTable";
import { useOrganisation } from "@/features/usage/useUsage";
import { StatementStatus } from "./StatementsPage";

const REFRESH_MS = 15_000;

export default function StatementPage() {
  const { t, locale } = useI18n();
  const { period } = useParams<{ period: string }>();
  const { org, slug } = useOrg();
  const statement = useQuery({
    queryKey: keys.statements(slug, period),
    queryFn: () => api.statement(slug, period),
    refetchInterval: (query) => (query.state.data?.status === "closed" ? false : REFRESH_MS),
  });
  const path = `/orgs/${encodeURIComponent(slug)}/statements/${encodeURIComponent(period)}`;
  return (
    <Page
      title={t("statement.title", { month: monthName(period, locale) })}
      scope={org.name}
      actions={
        <>
          <a className="button" href={url(path)} target="_blank" rel="noreferrer">{t("statement.json")}</a>
          <a className="button" data-kind="primary" href={url(`${path}/csv`)} download>{t("statement.csv")}</a>
        </>
      }
    >
      <Loaded query={statement}>{(data) => <Content statement={data} />}</Loaded>
    </Page>
  );
}

function Content({ statement }: { statement: Statement }) {
  const { t } = useI18n();
  const [search, setSearch] = useSearchParams();
  const line = statement.lines.find((each) => each.id === search.get("line"));
  const open = (id: string | null) => setSearch(id === null ? {} : { line: id });
  return (
    <div className="stack">
      <div className="row-wide">
        <StatementStatus status={statement.status} />
        <span className="tile-value">{statementMoney(statement.total_micro, statement.currency)}</span>
      </div>
      {statement.status === "open" ? <Notice tone="info">{t("statements.openNote")}</Notice> : <Notice tone="ok">{t("statements.closedNote", { hash: statement.content_hash ?? "–" })}</Notice>}
      {line ? <Behind statement={statement} line={line} onBack={() => open(null)} /> : <Lines statement={statement} onOpen={open} />}
    </div>
  );
}

function Lines({ statement, onOpen }: { statement: Statement; onOpen: (id: string) => void }) {
  const { t, locale } = useI18n();
  if (statement.lines.length === 0) return <Empty text={t("statement.noLines")} />;
  const { currency } = statement;
  return (
    <Table
      caption={t("statement.lines", { month: monthName(statement.period, locale) })}
      rows={statement.lines}
      rowKey={(line) => line.id}
      columns={[
        { head: t("statement.deployment"), cell: (line) => <Name>{nameOf(line.deployment)}</Name>, foot: t("common.total") },
        { head: t("statement.unit"), cell: (line) => t(`statement.unit.${line.unit}`) },
        { head: t("statement.priceVersion"), end: true, cell: (line) => line.price_version },
        { head: t("statement.unitPrice"), end: true, cell: (line) => perMillion(line.unit_price, currency) },
        { head: t("statement.quantity"), end: true, cell: (line) => count(line.quantity, locale) },
        { head: t("statement.exact"), end: true, cell: (line) => exactMoney(line.exact, currency) },
        { head: t("statement.amount"), end: true, cell: (line) => statementMoney(line.amount_micro, currency), foot: statementMoney(statement.total_micro, currency) },
        {
          head: <span className="visually-hidden">{t("common.actions")}</span>,
          end: true,
          cell: (line) => (
            <Button size="small" kind="quiet" aria-label={t("statement.showEvents", { deployment: nameOf(line.deployment), unit: t(`statement.unit.${line.unit}`) })} onClick={() => onOpen(line.id)}>
              {t("usage.events")}
            </Button>
          ),
        },
      ]}
    />
  );
}

function Behind({ statement, line, onBack }: { statement: Statement; line: StatementLine; onBack: () => void }) {
  const { t, locale } = useI18n();
  const { slug } = useOrg();
  const zone = useOrganisation().data?.time_zone ?? "UTC";
  const events = useInfiniteQuery({
    queryKey: keys.statements(slug, statement.period, line.id, "events"),
    queryFn: ({ pageParam }) => api.lineEvents(slug, statement.period, line.id, pageParam),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
  });
  const title = t("statement.lineEvents", { deployment: nameOf(line.deployment), unit: t(`statement.unit.${line.unit}`) });
  return (
    <section className="stack" aria-label={title}>
      <div className="spread">
        <h2>{title}</h2>
        <Button size="small" onClick={onBack}>{t("statement.back")}</Button>
      </div>
      <p className="num">
        {count(line.quantity, locale)} × {perMillion(line.unit_price, statement.currency)} / 1M = {exactMoney(line.exact, statement.currency)} → {statementMoney(line.amount_micro, statement.currency)}
      </p>
      <EventTable query={events} caption={title} zone={zone} currency={statement.currency} extra={[{ head: t("statement.quantity"), end: true, cell: (event) => count(event.quantity, locale) }]} />
    </section>
  );
}
