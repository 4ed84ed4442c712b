import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type SubmitEvent, useState } from "react";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Budget } from "@/shared/api/types";
import { exactMoney } from "@/shared/format/money";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { Dialog } from "@/shared/ui/Dialog";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Input } from "@/shared/ui/Field";
import { useToast } from "@/shared/ui/Toasts";
import { isAmount } from "./amount";

interface Props {
  budget: Budget;
  onClose: () => void;
}

/** As a person would type it: without the zeros at the end. */
function plain(amount: string): string {
  return amount.includes(".") ? amount.replace(/\.?0+$/, "") : amount;
}

function useNames({ subject, period }: Budget) {
  const { t } = useI18n();
  return { name: subject.name ?? subject.id.slice(0, 8), period: t(`budgets.period.${period}`) };
}

export function ChangeBudgetDialog({ budget, onClose }: Props) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const client = useQueryClient();
  const toast = useToast();
  const names = useNames(budget);
  const [amount, setAmount] = useState(plain(budget.limit));
  const wrong = !isAmount(amount);
  const change = useMutation({
    mutationFn: () => api.changeBudget(slug, budget.id, amount.trim()),
    onSuccess: () => {
      toast(t("budgets.changed"));
      onClose();
    },
    onSettled: () => client.invalidateQueries({ queryKey: keys.budgets(slug) }),
  });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    if (!wrong && !change.isPending) change.mutate();
  };
  return (
    <Dialog title={t("budgets.change.title", names)} onClose={onClose}>
      <form className="stack" onSubmit={submit} noValidate>
        <Input
          label={t("budgets.amount", { currency: budget.currency })}
          help={t("budgets.change.text", { spent: exactMoney(budget.spent, budget.currency) })}
          inputMode="decimal"
          autoComplete="off"
          value={amount}
          error={wrong ? t("budgets.amountInvalid") : null}
          onChange={(event) => setAmount(event.target.value)}
        />
        {change.isError ? <ErrorNotice error={change.error} /> : null}
        <div className="dialog-actions">
          <Button onClick={onClose}>{t("common.cancel")}</Button>
          <Button type="submit" kind="primary" busy={change.isPending} blocked={wrong ? t("deploy.fixFields") : null}>{change.isPending ? t("budgets.changing") : t("budgets.change.submit")}</Button>
        </div>
      </form>
    </Dialog>
  );
}

export function DeleteBudgetDialog({ budget, onClose }: Props) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const client = useQueryClient();
  const toast = useToast();
  const names = useNames(budget);
  const remove = useMutation({
    mutationFn: () => api.deleteBudget(slug, budget.id),
    onSuccess: () => {
      toast(t("budgets.deleted"));
      onClose();
    },
    onSettled: () => client.invalidateQueries({ queryKey: keys.budgets(slug) }),
  });
  return (
    <Dialog title={t("budgets.delete.title", names)} onClose={onClose}>
      <p>{t("budgets.delete.text")}</p>
      {remove.isError ? <ErrorNotice error={remove.error} /> : null}
      <div className="dialog-actions">
        <Button onClick={onClose}>{t("common.cancel")}</Button>
        <Button kind="danger" busy={remove.isPending} onClick={() => remove.mutate()}>{remove.isPending ? t("budgets.deleting") : t("budgets.delete.submit")}</Button>
      </div>
    </Dialog>
  );
}
