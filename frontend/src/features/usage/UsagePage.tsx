import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useSearchParams } from "wouter";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import { serverNow } from "@/shared/api/client";
import type { Usage, UsageGroup, UsageGroupBy } from "@/shared/api/types";
import { exactMoney, microToDecimal, statementMoney } from "@/shared/format/money";
import { count, duration } from "@/shared/format/number";
import { dateTime, shortDateTime } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { Segments, Select } from "@/shared/ui/Field";
import { Icon } from "@/shared/ui/Icon";
import { Loaded } from "@/shared/ui/Loaded";
import { Empty, Page } from "@/shared/ui/Page";
import { type Column, Name, Table } from "@/shared/ui/Table";
import { useStatements } from "@/features/billing/StatementsPage";
import { EventTable } from "./EventTable";
import { filterFor, interval, isRange, type Range, RANGES } from "./ranges";
import { useOrganisation, useUsage } from "./useUsage";

const GROUPS = ["deployment", "key", "day", "hour", "outcome"] as const;

/** Range, grouping and the drilled-down group live in the address, so that each view is a link. */
function useView() {
  const [search, setSearch] = useSearchParams();
  const asked = search.get("range");
  const range: Range = isRange(asked) ? asked : "month";
  const groupBy: UsageGroupBy = GROUPS.find((each) => each === search.get("by")) ?? "deployment";
  const set = (change: Record<string, string | null>) =>
    setSearch((now) => {
      const next = new URLSearchParams(now);
      for (const [name, value] of Object.entries(change)) {
        if (value === null) next.delete(name);
        else next.set(name, value);
      }
      return next;
    });
  return { range, groupBy, group: search.get("group"), label: search.get("label"), set };
}

export default function UsagePage() {
  const { t } = useI18n();
  const { org } = useOrg();
  const view = useView();
  const organisation = useOrganisation();
  const zone = organisation.data?.time_zone ?? "UTC";
  return (
    <Page title={t("usage.title")} scope={org.name} lead={t("usage.lead")}>
      <div className="row-wide">
        <div style={{ minWidth: 180 }}>
          <Select label={t("usage.range")} value={view.range} onChange={(event) => view.set({ range: event.target.value, group: null, label: null })}>
            {RANGES.map((range) => (
              <option key={range} value={range}>{t(`usage.range.${range}`)}</option>
            ))}
          </Select>
        </div>
        <div className="field">
          <span className="field-legend">{t("usage.groupBy")}</span>
          <Segments label={t("usage.groupBy")} value={view.groupBy} onChange={(by) => view.set({ by, group: null, label: null })} options={GROUPS.map((value) => ({ value, label: t(`usage.by.${value}`) }))} />
        </div>
      </div>
      {view.group === null ? <Groups view={view} zone={zone} /> : <Events view={view} group={view.group} zone={zone} />}
    </Page>
  );
}

type View = ReturnType<typeof useView>;

function Groups({ view, zone }: { view: View; zone: string }) {
  const { t } = useI18n();
  const usage = useUsage(view.range, view.groupBy);
  return (
    <Loaded query={usage} rows={5}>
      {(data) =>
        data.totals.requests === 0 ? (
          <>
            <Freshness usage={data} zone={zone} />
            <Empty text={t("usage.empty")} />
          </>
        ) : (
          <>
            <Freshness usage={data} zone={zone} />
            <GroupTable usage={data} view={view} zone={zone} />
            <Reconciled usage={data} />
          </>
        )
      }
    </Loaded>
  );
}

function Freshness({ usage, zone }: { usage: Usage; zone: string }) {
  const { t, locale } = useI18n();
  const at = (instant: string) => dateTime(instant, locale, zone);
  return (
    <p className="small muted num">
      {t("usage.freshness", { from: at(usage.from), to: at(usage.to), asOf: at(usage.as_of) })}
      {usage.behind_seconds === null ? "" : ` · ${t("usage.behind", { duration: duration(usage.behind_seconds * 1000) })}`}
    </p>
  );
}

function GroupTable({ usage, view, zone }: { usage: Usage; view: View; zone: string }) {
  const { t, locale, lookup } = useI18n();
  const { me, can } = useOrg();
  const name = (group: UsageGroup) => {
    if (view.groupBy === "outcome") return lookup(`outcome.${group.key}`) ?? group.label;
    return view.groupBy === "hour" ? shortDateTime(group.key, locale, zone) : group.label;
  };
  const number = (head: string, pick: (numbers: UsageGroup | Usage["totals"]) => number): Column<UsageGroup> => ({
    head,
    end: true,
    cell: (group) => count(pick(group), locale),
    foot: count(pick(usage.totals), locale),
  });
  const amount = (value: string | null | undefined) => (typeof value === "string" ? exactMoney(value, me.currency) : "–");
  const columns: Column<UsageGroup>[] = [
    {
      head: t(`usage.by.${view.groupBy}`),
      cell: (group) => (
        <button type="button" className="button" data-kind="quiet" data-size="small" aria-label={t("usage.showEvents", { label: name(group) })} onClick={() => view.set({ group: group.key, label: name(group) })}>
          <Name>{name(group)}</Name>
        </button>
      ),
      foot: t("common.total"),
    },
    number(t("usage.requests"), (numbers) => numbers.requests),
    number(t("usage.input"), (numbers) => numbers.prompt_tokens),
    number(t("usage.cached"), (numbers) => numbers.cached_tokens),
    number(t("usage.output"), (numbers) => numbers.completion_tokens),
  ];
  if (can("billing.read")) columns.push({ head: t("usage.cost"), end: true, cell: (group) => amount(group.amount), foot: amount(usage.totals.amount) });
  return <Table caption={t("usage.groups", { group: t(`usage.by.${view.groupBy}`) })} columns={columns} rows={usage.groups} rowKey={(group) => group.key} />;
}

/** The server's own check that these totals and the statement agree. */
function Reconciled({ usage }: { usage: Usage }) {
  const { t } = useI18n();
  const { slug, me, can } = useOrg();
  const check = usage.reconciles_with;
  const statements = useStatements(check !== null && can("billing.read"));
  if (check === null || !can("billing.read")) return null;
  const equal = check.difference_micro === 0;
  const statement = statements.data?.items.find((each) => each.period === check.period);
  const amount = statement ? statementMoney(statement.total_micro, statement.currency) : "–";
  return (
    <p className="small">
      <Icon name={equal ? "check" : "alert"} tone={equal ? "ok" : "warn"} />{" "}
      <Link href={`/o/${slug}/statements/${check.period}`}>
        {equal ? t("usage.reconciled", { period: check.period, amount }) : t("usage.difference", { period: check.period, amount: exactMoney(microToDecimal(check.difference_micro), me.currency) })}
      </Link>
    </p>
  );
}

function Events({ view, group, zone }: { view: View; group: string; zone: string }) {
  const { t } = useI18n();
  const { slug, me } = useOrg();
  const label = view.label ?? group;
  const events = useInfiniteQuery({
    queryKey: keys.usage(slug, "events", view.range, view.groupBy, group, zone),
    queryFn: ({ pageParam }) => api.usageEvents(slug, { ...filterFor(view.groupBy, group, interval(view.range, serverNow(), zone), zone), cursor: pageParam }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
  });
  return (
    <section className="stack" aria-label={t("usage.events.of", { label })}>
      <div className="spread">
        <h2>{t("usage.events.of", { label })}</h2>
        <Button size="small" onClick={() => view.set({ group: null, label: null })}>{t("usage.backToGroups")}</Button>
      </div>
      <EventTable query={events} caption={t("usage.events.of", { label })} zone={zone} currency={me.currency} />
    </section>
  );
}
