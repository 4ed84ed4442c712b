import type { ReactNode } from "react";
import type { Deployment } from "@/shared/api/types";
import { statementMoney } from "@/shared/format/money";
import { compact, count } from "@/shared/format/number";
import { dayIn, monthName } from "@/shared/format/time";
import { serverNow } from "@/shared/api/client";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Link } from "wouter";
import { ButtonLink } from "@/shared/ui/Button";
import { Loaded } from "@/shared/ui/Loaded";
import { Notice } from "@/shared/ui/Notice";
import { Card, Page } from "@/shared/ui/Page";
import { DeploymentTable, needsAttention, useDeployments } from "@/features/deployments/DeploymentsPage";
import { useStatements } from "@/features/billing/StatementsPage";
import { useOrganisation, useUsage } from "@/features/usage/useUsage";
import { FirstSteps } from "./FirstSteps";

export default function OverviewPage() {
  const { t } = useI18n();
  const { org, slug, can } = useOrg();
  const deployments = useDeployments();
  return (
    <Page title={t("overview.title")} scope={org.name} lead={org.name} actions={can("deployments.write") ? <ButtonLink kind="primary" href={`/o/${slug}/deploy`}>{t("overview.deployModel")}</ButtonLink> : null}>
      <FirstSteps />
      <Tiles />
      <Loaded query={deployments}>
        {({ items }) =>
          items.length === 0 ? null : (
            <section className="stack" aria-label={t("deployments.title")}>
              <h2>{t("deployments.title")}</h2>
              <Attention items={items} />
              <DeploymentTable items={items} />
            </section>
          )
        }
      </Loaded>
    </Page>
  );
}

function Attention({ items }: { items: readonly Deployment[] }) {
  const { t } = useI18n();
  const wrong = items.filter(needsAttention);
  if (wrong.length === 0) return null;
  return <Notice tone="warn" title={t("overview.attention")}><p>{wrong.map((each) => each.name).join(", ")}</p></Notice>;
}

function Tiles() {
  const { t, locale } = useI18n();
  const { slug, me, can } = useOrg();
  const usage = useUsage("month", "deployment");
  const zone = useOrganisation().data?.time_zone ?? "UTC";
  const deployments = useDeployments().data?.items ?? [];
  const ready = deployments.filter((each) => each.state === "ready").length;
  const period = dayIn(serverNow(), zone).slice(0, 7);
  const month = t("overview.month", { month: monthName(period, locale), zone });
  const statements = useStatements(can("billing.read"));
  const statement = statements.data?.items.find((each) => each.period === period);
  return (
    <div className="tiles">
      <Tile name={t("overview.ready")} value={t("overview.readyOf", { ready, total: deployments.length })} detail="" />
      <Loaded query={usage} rows={1}>
        {({ totals }) => (
          <>
            <Tile name={t("overview.requests")} value={count(totals.requests, locale)} detail={month} />
            <Tile
              name={t("overview.tokens")}
              value={compact(totals.prompt_tokens + totals.completion_tokens, locale)}
              detail={t("overview.tokensDetail", { input: count(totals.prompt_tokens, locale), output: count(totals.completion_tokens, locale) })}
            />
            {can("billing.read") && statements.data ? (
              <Tile
                name={t("overview.spend")}
                value={statementMoney(statement?.total_micro ?? 0, statement?.currency ?? me.currency)}
                detail={statement ? <Link href={`/o/${slug}/statements/${period}`}>{t("statement.title", { month: monthName(period, locale) })}</Link> : month}
              />
            ) : null}
          </>
        )}
      </Loaded>
    </div>
  );
}

function Tile({ name, value, detail }: { name: string; value: string; detail: ReactNode }) {
  return (
    <Card>
      <div className="muted">{name}</div>
      <div className="tile-value">{value}</div>
      <div className="small muted">{detail}</div>
    </Card>
  );
}
