import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type SubmitEvent, useState } from "react";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import { serverNow, toApiError } from "@/shared/api/client";
import type { CreateKey, IssuedKey } from "@/shared/api/types";
import { useIdempotencyKey } from "@/shared/api/useIdempotencyKey";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { Dialog } from "@/shared/ui/Dialog";
import { ErrorNotice, useErrorText } from "@/shared/ui/ErrorNotice";
import { Input, Select } from "@/shared/ui/Field";
import { wholeNumber } from "@/features/deploy/form";
import { useDeployments } from "@/features/deployments/DeploymentsPage";
import { networksOf } from "./networks";

const DAYS = [7, 30, 90, 365] as const;
const DAY_MS = 86_400_000;

interface Draft {
  name: string;
  kind: "member" | "service";
  days: string; // "" = never
  only: boolean;
  deployments: readonly string[];
  rpm: string; // "" = no limit, here and below
  tpm: string;
  concurrency: string;
  networks: string; // one a line, or separated by commas; "" = from anywhere
}

const LIMITS = ["rpm", "tpm", "concurrency"] as const;
const MOST = 999_999_999;

function limitIsWrong(text: string): boolean {
  return text.trim() !== "" && (wholeNumber(text) ?? 0) < 1;
}

export function CreateKeyDialog({ onClose, onCreated }: { onClose: () => void; onCreated: (key: IssuedKey) => void }) {
  const { t } = useI18n();
  const { slug, can } = useOrg();
  const client = useQueryClient();
  const idempotency = useIdempotencyKey();
  const errorText = useErrorText();
  const [draft, setDraft] = useState<Draft>({ name: "", kind: "member", days: "90", only: false, deployments: [], rpm: "", tpm: "", concurrency: "", networks: "" });
  const [checked, setChecked] = useState(false);
  const [opened] = useState(serverNow); // one instant for the form's life: the same form twice is the same request
  const body = toBody(draft, opened);
  const create = useMutation({
    mutationFn: () => api.createKey(slug, body, idempotency.keyFor(body)),
    onSuccess: onCreated,
    onSettled: (_, error) => {
      idempotency.settle(error);
      return client.invalidateQueries({ queryKey: keys.apiKeys(slug) });
    },
  });
  const noName = draft.name.trim() === "";
  const noneChosen = draft.only && draft.deployments.length === 0;
  const wrongLimit = LIMITS.some((limit) => limitIsWrong(draft[limit]));
  const refused = create.isError ? toApiError(create.error) : null;
  const networksError = refused?.field === "networks" ? errorText(refused) : null;
  const nameError = checked && noName ? t("keys.nameRequired") : refused?.field === "name" ? errorText(refused) : null;
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    setChecked(true);
    if (!noName && !noneChosen && !wrongLimit && !create.isPending) create.mutate();
  };
  const change = (part: Partial<Draft>) => setDraft((now) => ({ ...now, ...part }));
  return (
    <Dialog title={t("keys.create")} onClose={onClose}>
      <form className="stack" onSubmit={submit} noValidate>
        <Input label={t("common.name")} help={t("keys.nameHelp")} error={nameError} maxLength={80} autoComplete="off" value={draft.name} onChange={(event) => change({ name: event.target.value })} />
        {can("keys.create_service") ? (
          <Select label={t("keys.kind")} value={draft.kind} onChange={(event) => change({ kind: event.target.value === "service" ? "service" : "member" })}>
            <option value="member">{t("keys.kind.memberHelp")}</option>
            <option value="service">{t("keys.kind.serviceHelp")}</option>
          </Select>
        ) : null}
        <Select label={t("keys.expiry")} value={draft.days} onChange={(event) => change({ days: event.target.value })}>
          {DAYS.map((n) => (
            <option key={n} value={n}>{t("keys.expiry.days", { n })}</option>
          ))}
          <option value="">{t("keys.expiry.never")}</option>
        </Select>
        <DeploymentChoice draft={draft} onChange={change} error={checked && noneChosen ? t("keys.deployments.none") : null} />
        <LimitFields draft={draft} onChange={change} checked={checked} />
        <Input label={t("keys.networks")} help={t("keys.networks.help")} error={networksError} placeholder="203.0.113.0/24, 2001:db8::/32" autoComplete="off" spellCheck={false} value={draft.networks} onChange={(event) => change({ networks: event.target.value })} />
        {refused && refused.field !== "name" && refused.field !== "networks" ? <ErrorNotice error={refused} /> : null}
        <div className="dialog-actions">
          <Button onClick={onClose}>{t("common.cancel")}</Button>
          <Button type="submit" kind="primary" busy={create.isPending}>{create.isPending ? t("keys.creating") : t("keys.create")}</Button>
        </div>
      </form>
    </Dialog>
  );
}

function LimitFields({ draft, onChange, checked }: { draft: Draft; onChange: (part: Partial<Draft>) => void; checked: boolean }) {
  const { t } = useI18n();
  return (
    <fieldset style={{ border: 0, padding: 0, margin: 0, minWidth: 0 }}>
      <legend className="field-legend" style={{ padding: 0 }}>{t("keys.limits")}</legend>
      <p className="field-help">{t("keys.limits.help")}</p>
      <div className="field-row">
        {LIMITS.map((limit) => (
          <Input
            key={limit}
            label={t(`keys.limits.${limit}`)}
            inputMode="numeric"
            autoComplete="off"
            value={draft[limit]}
            error={checked && limitIsWrong(draft[limit]) ? t("deploy.invalidNumber", { min: 1, max: MOST }) : null}
            onChange={(event) => onChange({ [limit]: event.target.value })}
          />
        ))}
      </div>
    </fieldset>
  );
}

function DeploymentChoice({ draft, onChange, error }: { draft: Draft; onChange: (part: Partial<Draft>) => void; error: string | null }) {
  const { t } = useI18n();
  const items = useDeployments().data?.items ?? [];
  if (items.length === 0) return null;
  const toggle = (id: string, on: boolean) => onChange({ deployments: on ? [...draft.deployments, id] : draft.deployments.filter((each) => each !== id) });
  return (
    <fieldset style={{ border: 0, padding: 0, margin: 0 }}>
      <legend className="field-legend" style={{ padding: 0 }}>{t("keys.deployments")}</legend>
      <label className="check">
        <input type="radio" name="scope" checked={!draft.only} onChange={() => onChange({ only: false })} /> {t("keys.deployments.all")}
      </label>
      <label className="check">
        <input type="radio" name="scope" checked={draft.only} onChange={() => onChange({ only: true })} /> {t("keys.deployments.some")}
      </label>
      {draft.only ? (
        <div style={{ paddingInlineStart: 24 }}>
          {items.map((each) => (
            <label key={each.id} className="check">
              <input type="checkbox" checked={draft.deployments.includes(each.id)} onChange={(event) => toggle(each.id, event.target.checked)} /> {each.model_id}
            </label>
          ))}
        </div>
      ) : null}
      {error ? <div className="field-error" role="alert">{error}</div> : null}
    </fieldset>
  );
}

function toBody(draft: Draft, now: number): CreateKey {
  const body: CreateKey = { name: draft.name.trim(), kind: draft.kind };
  if (draft.days !== "") body.expires_at = new Date(now + Number(draft.days) * DAY_MS).toISOString();
  if (draft.only) body.deployment_ids = [...draft.deployments];
  const networks = networksOf(draft.networks);
  if (networks.length > 0) body.networks = networks;
  const limits: NonNullable<CreateKey["limits"]> = {};
  for (const limit of LIMITS) {
    const value = wholeNumber(draft[limit]);
    if (value !== null) limits[limit] = value;
  }
  if (Object.keys(limits).length > 0) body.limits = limits;
  return body;
}
