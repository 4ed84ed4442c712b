import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Budget } from "@/shared/api/types";
import { exactMoney } from "@/shared/format/money";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { Loaded } from "@/shared/ui/Loaded";
import { Empty, Page } from "@/shared/ui/Page";
import { Name, Table } from "@/shared/ui/Table";
import { AddBudgetDialog } from "./AddBudgetDialog";
import { ChangeBudgetDialog, DeleteBudgetDialog } from "./BudgetDialogs";

const REFRESH_MS = 10_000;

type Open = { what: "add" } | { what: "change" | "delete"; budget: Budget };

export default function BudgetsPage() {
  const { t } = useI18n();
  const { org, slug, can } = useOrg();
  const budgets = useQuery({ queryKey: keys.budgets(slug), queryFn: () => api.budgets(slug), refetchInterval: REFRESH_MS });
  const [open, setOpen] = useState<Open | null>(null);
  const close = () => setOpen(null);
  const add = can("budgets.write") ? <Button kind="primary" onClick={() => setOpen({ what: "add" })}>{t("budgets.add")}</Button> : null;
  return (
    <Page title={t("budgets.title")} scope={org.name} lead={t("budgets.lead")} actions={add}>
      <Loaded query={budgets}>{({ items }) => (items.length === 0 ? <Empty text={t("budgets.empty")} /> : <BudgetTable items={items} onOpen={setOpen} />)}</Loaded>
      {open?.what === "add" ? <AddBudgetDialog onClose={close} /> : null}
      {open?.what === "change" ? <ChangeBudgetDialog budget={open.budget} onClose={close} /> : null}
      {open?.what === "delete" ? <DeleteBudgetDialog budget={open.budget} onClose={close} /> : null}
    </Page>
  );
}

function BudgetTable({ items, onOpen }: { items: readonly Budget[]; onOpen: (open: Open) => void }) {
  const { t } = useI18n();
  const { can } = useOrg();
  const money = (amount: string | null, { currency }: Budget) => (amount === null ? "–" : exactMoney(amount, currency));
  const name = (each: Budget) => each.subject.name ?? each.subject.id.slice(0, 8);
  const mayChange = (each: Budget) => can(each.scope === "org" ? "budgets.write_org" : "budgets.write");
  const period = (each: Budget) => t(`budgets.period.${each.period}`);
  return (
    <Table
      caption={t("budgets.title")}
      rows={items}
      rowKey={(each) => each.id}
      columns={[
        {
          head: t("budgets.about"),
          cell: (each) => (
            <>
              <div><Name>{name(each)}</Name></div>
              <div className="small muted">{t(`budgets.scope.${each.scope}`)}</div>
            </>
          ),
        },
        { head: t("budgets.period"), cell: (each) => (each.period === "total" ? period(each) : t("budgets.periodNow", { period: period(each), name: each.period_name, zone: each.time_zone })) },
        { head: t("budgets.spent"), end: true, cell: (each) => money(each.spent, each) },
        { head: t("budgets.reserved"), end: true, cell: (each) => money(each.reserved, each) },
        { head: t("budgets.limit"), end: true, cell: (each) => money(each.limit, each) },
        { head: t("budgets.left"), end: true, cell: (each) => money(each.left, each) },
        {
          head: <span className="visually-hidden">{t("common.actions")}</span>,
          end: true,
          cell: (each) =>
            mayChange(each) ? (
              <>
                <Button size="small" aria-label={t("budgets.changeNamed", { name: name(each), period: period(each) })} onClick={() => onOpen({ what: "change", budget: each })}>{t("budgets.change")}</Button>{" "}
                <Button size="small" kind="danger" aria-label={t("budgets.deleteNamed", { name: name(each), period: period(each) })} onClick={() => onOpen({ what: "delete", budget: each })}>{t("budgets.delete")}</Button>
              </>
            ) : null,
        },
      ]}
    />
  );
}
