import type { InfiniteData, UseInfiniteQueryResult } from "@tanstack/react-query";
import type { Page, UsageEvent } from "@/shared/api/types";
import { exactMoney } from "@/shared/format/money";
import { count, duration } from "@/shared/format/number";
import { dateTime, shortDateTime } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Empty } from "@/shared/ui/Page";
import { Paged } from "@/shared/ui/Paged";
import { type Column, Name } from "@/shared/ui/Table";

/** What is gone has no name any more; the start of its id still tells two apart. */
export function nameOf({ id, name }: { id: string; name: string | null }): string {
  return name ?? `${id.slice(0, 8)}…`;
}

interface Props<E extends UsageEvent> {
  query: UseInfiniteQueryResult<InfiniteData<Page<E>>>;
  extra?: readonly Column<E>[];
  caption: string;
  zone: string;
  currency: string;
}

/** Requests, one a row; never their content, which Berth does not have. */
export function EventTable<E extends UsageEvent>({ query, caption, zone, currency, extra = [] }: Props<E>) {
  const { t, locale, lookup } = useI18n();
  const { can } = useOrg();
  const money = can("billing.read") ? [{ head: t("usage.cost"), end: true, cell: (event: E) => (typeof event.amount === "string" ? exactMoney(event.amount, currency) : "–") }] : [];
  return (
    <div className="stack">
      <p className="small muted">{t("usage.noContent")}</p>
      <Paged
        query={query}
        caption={caption}
        empty={<Empty text={t("usage.empty")} />}
        rowKey={(event) => event.id}
        columns={[
          { head: t("usage.when"), cell: (event) => <time className="nowrap num" dateTime={event.accepted_at} title={dateTime(event.accepted_at, locale, zone)}>{shortDateTime(event.accepted_at, locale, zone)}</time> },
          { head: t("usage.deployment"), cell: (event) => <Name>{nameOf(event.deployment)}</Name> },
          { head: t("usage.key"), cell: (event) => <Name>{nameOf(event.key)}</Name> },
          {
            head: t("usage.outcome"),
            cell: (event) => (
              <span title={`${t("usage.endpoint")}: ${event.endpoint}`}>
                {lookup(`outcome.${event.outcome}`) ?? event.outcome} <span className="muted">{event.status}</span>
              </span>
            ),
          },
          { head: t("usage.input"), end: true, cell: (event) => count(event.prompt_tokens, locale) },
          { head: t("usage.cached"), end: true, cell: (event) => count(event.cached_tokens, locale) },
          { head: t("usage.output"), end: true, cell: (event) => count(event.completion_tokens, locale) },
          { head: t("usage.ttft"), end: true, cell: (event) => duration(event.first_token_ms) },
          { head: t("usage.duration"), end: true, cell: (event) => duration(event.duration_ms) },
          ...extra,
          ...money,
        ]}
      />
    </div>
  );
}
