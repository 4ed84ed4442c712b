import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { useLocation, useSearchParams } from "wouter";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import { ApiError } from "@/shared/api/client";
import type { DeployRequest, Model, PlanRequest } from "@/shared/api/types";
import { useIdempotencyKey } from "@/shared/api/useIdempotencyKey";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Loaded } from "@/shared/ui/Loaded";
import { Empty, Page } from "@/shared/ui/Page";
import { useToast } from "@/shared/ui/Toasts";
import { AddSample, newest, useModels } from "@/features/models/ModelsPage";
import { check, type Draft, EMPTY, toRequest } from "./form";
import { NeedsForm } from "./NeedsForm";
import { NotChosen, PlanPanel } from "./PlanPanel";
import { type Attempt, attemptOf, staleOf } from "./stale";
import { StaleNotice } from "./StaleNotice";
import { usePlan } from "./usePlan";

export default function DeployPage() {
  const { t } = useI18n();
  const { org, can } = useOrg();
  const models = useModels();
  const [search] = useSearchParams();
  if (!models.data || models.data.items.length === 0) {
    return (
      <Page title={t("deploy.title")} scope={org.name} lead={t("deploy.lead")}>
        <Loaded query={models}>{() => <Empty text={t("deploy.noModel")}>{can("models.write") ? <AddSample /> : null}</Empty>}</Loaded>
      </Page>
    );
  }
  const { items } = models.data;
  const asked = items.find((model) => model.name === search.get("model")) ?? items[0];
  return <Wizard models={items} first={asked?.name ?? ""} />;
}

function Wizard({ models, first }: { models: readonly Model[]; first: string }) {
  const { t } = useI18n();
  const { org, slug } = useOrg();
  const [, go] = useLocation();
  const client = useQueryClient();
  const toast = useToast();
  const idempotency = useIdempotencyKey();
  const [draft, setDraft] = useState<Draft>({ ...EMPTY, model: first });
  const model = models.find((each) => each.name === draft.model);
  const problems = check(draft);
  const broken = Object.keys(problems).length > 0;
  const request = toRequest(draft);
  const attempt = useRef<Attempt | null>(null);
  const { query, current, busy } = usePlan(slug, model && newest(model) && !broken ? asPlan(request) : null);
  const deploy = useMutation({
    mutationFn: () => {
      attempt.current = attemptOf(attempt.current, request, query.data?.plan_id);
      return api.deploy(slug, attempt.current.body, idempotency.keyFor(attempt.current.body));
    },
    onSuccess: (made) => {
      toast(t("deploy.started", { name: made.name }));
      void client.invalidateQueries({ queryKey: keys.models(slug) });
      client.setQueryData(keys.deployment(slug, made.name), made);
      go(`/o/${slug}/deployments/${made.name}`);
    },
    onSettled: (_, error) => {
      idempotency.settle(error);
      if (!(error instanceof ApiError && error.retryable)) attempt.current = null;
      if (staleOf(error)) void query.refetch();
      void client.invalidateQueries({ queryKey: keys.deployments(slug), exact: true });
    },
  });
  const edit = (change: Partial<Draft>) => {
    if (deploy.isError) deploy.reset();
    setDraft((now) => ({ ...now, ...change }));
  };
  const stale = deploy.isError ? staleOf(deploy.error) : null;
  const blocked = broken ? t("deploy.fixFields") : current && query.data?.fits ? null : t("deploy.noPlan");
  return (
    <Page
      title={t("deploy.title")}
      scope={org.name}
      lead={t("deploy.lead")}
      actions={
        <Button kind="primary" busy={deploy.isPending} blocked={blocked ?? (stale && query.isFetching ? t("plan.planning") : null)} onClick={() => deploy.mutate()}>
          {deploy.isPending ? t("deploy.busy") : stale ? t("deploy.confirm") : t("deploy.submit")}
        </Button>
      }
    >
      {stale ? <StaleNotice stale={stale} /> : deploy.isError ? <ErrorNotice error={deploy.error} /> : null}
      <div className="grid-deploy">
        <NeedsForm draft={draft} models={models} problems={problems} onChange={edit} />
        <div className="stack">
          {query.isError && !query.isFetching ? <ErrorNotice error={query.error} onRetry={() => void query.refetch()} /> : null}
          <PlanPanel plan={query.data} busy={busy} onApply={edit} />
          {query.data ? <NotChosen rejected={query.data.rejected} /> : null}
        </div>
      </div>
    </Page>
  );
}

/** What a plan depends on: the deployment's name is no part of it. */
function asPlan(request: DeployRequest): PlanRequest {
  const asked = { ...request };
  delete asked.name;
  return asked;
}
