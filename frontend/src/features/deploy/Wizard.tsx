import { useState } from "react";
import { toApiError } from "@/shared/api/client";
import type { Model } from "@/shared/api/types";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { ErrorNotice, useErrorText } from "@/shared/ui/ErrorNotice";
import { Page } from "@/shared/ui/Page";
import { newest } from "@/features/models/ModelsPage";
import { check, type Draft, type Kept, toPlanRequest } from "./form";
import { NeedsForm } from "./NeedsForm";
import { NotChosen, PlanPanel } from "./PlanPanel";
import type { Send } from "./send";
import { staleOf } from "./stale";
import { StaleNotice } from "./StaleNotice";
import { usePlan } from "./usePlan";

interface Props {
  title: string;
  lead: string;
  models: readonly Model[];
  first: Draft;
  kept?: Kept;
  changing?: boolean; // an existing deployment: its model and name are given
  send: Send;
  words: { submit: string; busy: string };
}

/** Needs and, planned after each change, what would run. Nothing is sent that was not seen. */
export function Wizard({ title, lead, models, first, kept, changing = false, send, words }: Props) {
  const { t } = useI18n();
  const { org, slug } = useOrg();
  const errorText = useErrorText();
  const [draft, setDraft] = useState<Draft>(first);
  const model = models.find((each) => each.name === draft.model);
  const problems = check(draft);
  const broken = Object.keys(problems).length > 0;
  const { query, current, busy } = usePlan(slug, model && newest(model) ? toPlanRequest(draft, kept) : null);
  const edit = (change: Partial<Draft>) => {
    if (send.isError) send.reset();
    setDraft((now) => ({ ...now, ...change }));
  };
  const submit = () => {
    send.mutate({ draft, planId: query.data?.plan_id }, {
      onError: (error) => {
        if (staleOf(error)) void query.refetch();
      },
    });
  };
  const stale = send.isError ? staleOf(send.error) : null;
  const refused = send.isError && !stale ? toApiError(send.error) : null;
  const same = changing && JSON.stringify({ ...draft, takeover: null }) === JSON.stringify({ ...first, takeover: null });
  const waits = broken ? t("deploy.fixFields") : current && query.data?.fits ? null : t("deploy.noPlan");
  const blocked = waits ?? (same ? t("deploy.change.same") : stale && query.isFetching ? t("plan.planning") : null);
  const button = (
    <Button kind="primary" busy={send.isPending} blocked={blocked} onClick={submit}>
      {send.isPending ? words.busy : stale ? t("deploy.confirm") : words.submit}
    </Button>
  );
  return (
    <Page title={title} scope={org.name} lead={lead} actions={<div className="only-wide">{button}</div>}>
      {stale ? <StaleNotice stale={stale} /> : refused ? <ErrorNotice error={refused} /> : null}
      <div className="grid-deploy">
        <div className="stack">
          <NeedsForm draft={draft} models={models} problems={problems} nameError={refused?.field === "name" ? errorText(refused) : null} fixed={changing} onChange={edit} />
          <div className="only-narrow">
            <div className="row">
              {button}
              {blocked === null ? null : <span className="muted">{blocked}</span>}
            </div>
          </div>
        </div>
        <div className="stack">
          {query.isError && !query.isFetching ? <ErrorNotice error={query.error} onRetry={() => void query.refetch()} /> : null}
          <PlanPanel plan={query.data} busy={busy} broken={broken} onApply={edit} />
          {query.data ? <NotChosen rejected={query.data.rejected} /> : null}
        </div>
      </div>
    </Page>
  );
}
