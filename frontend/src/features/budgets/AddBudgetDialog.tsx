import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type SubmitEvent, useState } from "react";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import { toApiError } from "@/shared/api/client";
import type { BudgetPeriod, BudgetScope, NewBudget } from "@/shared/api/types";
import { useIdempotencyKey } from "@/shared/api/useIdempotencyKey";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { Dialog } from "@/shared/ui/Dialog";
import { ErrorNotice, useErrorText } from "@/shared/ui/ErrorNotice";
import { Input, Select } from "@/shared/ui/Field";
import { useToast } from "@/shared/ui/Toasts";
import { isAmount } from "./amount";

const PERIODS: readonly BudgetPeriod[] = ["day", "month", "total"];

export function AddBudgetDialog({ onClose }: { onClose: () => void }) {
  const { t } = useI18n();
  const { slug, me } = useOrg();
  const client = useQueryClient();
  const toast = useToast();
  const idempotency = useIdempotencyKey();
  const errorText = useErrorText();
  const scopes = useScopes();
  const [scope, setScope] = useState<BudgetScope>(scopes[0] ?? "deployment");
  const [subject, setSubject] = useState("");
  const [period, setPeriod] = useState<BudgetPeriod>("month");
  const [amount, setAmount] = useState("");
  const [checked, setChecked] = useState(false);
  const body: NewBudget = { scope, period, amount: amount.trim(), ...(scope === "org" ? {} : { subject_id: subject }) };
  const create = useMutation({
    mutationFn: () => api.createBudget(slug, body, idempotency.keyFor(body)),
    onSuccess: () => {
      toast(t("budgets.added"));
      onClose();
    },
    onSettled: (_, error) => {
      idempotency.settle(error);
      return client.invalidateQueries({ queryKey: keys.budgets(slug) });
    },
  });
  const noSubject = scope !== "org" && subject === "";
  const wrongAmount = !isAmount(amount);
  const refused = create.isError ? toApiError(create.error) : null;
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    setChecked(true);
    if (!noSubject && !wrongAmount && !create.isPending) create.mutate();
  };
  return (
    <Dialog title={t("budgets.add")} onClose={onClose}>
      <form className="stack" onSubmit={submit} noValidate>
        <Select
          label={t("budgets.scope")}
          value={scope}
          onChange={(event) => {
            setScope(scopes.find((each) => each === event.target.value) ?? scope);
            setSubject("");
          }}
        >
          {scopes.map((each) => (
            <option key={each} value={each}>{t(`budgets.scope.${each}`)}</option>
          ))}
        </Select>
        {scope === "org" ? null : <SubjectSelect scope={scope} value={subject} onChange={setSubject} error={checked && noSubject ? t("budgets.noSubject") : null} />}
        <Select label={t("budgets.period")} value={period} onChange={(event) => setPeriod(PERIODS.find((each) => each === event.target.value) ?? period)}>
          {PERIODS.map((each) => (
            <option key={each} value={each}>{t(`budgets.period.${each}`)}</option>
          ))}
        </Select>
        <Input
          label={t("budgets.amount", { currency: me.currency })}
          inputMode="decimal"
          autoComplete="off"
          value={amount}
          error={checked && wrongAmount ? t("budgets.amountInvalid") : refused?.field === "amount" ? errorText(refused) : null}
          onChange={(event) => setAmount(event.target.value)}
        />
        {refused && refused.field !== "amount" ? <ErrorNotice error={refused} /> : null}
        <div className="dialog-actions">
          <Button onClick={onClose}>{t("common.cancel")}</Button>
          <Button type="submit" kind="primary" busy={create.isPending}>{create.isPending ? t("budgets.adding") : t("budgets.add")}</Button>
        </div>
      </form>
    </Dialog>
  );
}

/** What this member may set budgets for; of deployments and keys a developer only their own, which the server decides. */
function useScopes(): readonly BudgetScope[] {
  const { can } = useOrg();
  const allowed: Record<BudgetScope, boolean> = { org: can("budgets.write_org"), deployment: can("deployments.read"), key: can("keys.read_own"), member: can("billing.read") };
  return (["org", "deployment", "key", "member"] as const).filter((scope) => allowed[scope]);
}

function SubjectSelect({ scope, value, onChange, error }: { scope: Exclude<BudgetScope, "org">; value: string; onChange: (id: string) => void; error: string | null }) {
  const { t } = useI18n();
  const choices = useSubjects(scope);
  return (
    <Select label={t("budgets.subject")} value={value} error={error} onChange={(event) => onChange(event.target.value)}>
      <option value="" disabled>{choices === undefined ? t("common.loading") : "–"}</option>
      {choices?.map(({ id, name }) => (
        <option key={id} value={id}>{name}</option>
      ))}
    </Select>
  );
}

function useSubjects(scope: Exclude<BudgetScope, "org">): readonly { id: string; name: string }[] | undefined {
  const { slug } = useOrg();
  const deployments = useQuery({ queryKey: keys.deployments(slug), queryFn: () => api.deployments(slug), enabled: scope === "deployment" });
  const members = useQuery({ queryKey: keys.members(slug), queryFn: () => api.members(slug), enabled: scope === "member" });
  const apiKeys = useQuery({ queryKey: [...keys.apiKeys(slug), "first"], queryFn: () => api.keys(slug), enabled: scope === "key" });
  switch (scope) {
    case "deployment":
      return deployments.data?.items;
    case "member":
      return members.data?.items.map(({ id, user }) => ({ id, name: user.name ? `${user.name} (${user.email})` : user.email }));
    case "key":
      return apiKeys.data?.items.filter((key) => key.status === "active");
  }
}
