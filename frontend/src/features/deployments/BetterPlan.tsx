import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Differences } from "@/features/deploy/StaleNotice";
import { usePlanText } from "@/features/deploy/planText";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Deployment } from "@/shared/api/types";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Notice } from "@/shared/ui/Notice";
import { useToast } from "@/shared/ui/Toasts";

const FRESH = 5 * 60_000; // a plan's id is good for a quarter of an hour

/** What Berth would choose today for the same needs, where that is another thing than what runs. Nothing changes until somebody takes it. */
export function BetterPlan({ deployment }: { deployment: Deployment }) {
  const { can } = useOrg();
  return can("deployments.write") && deployment.desired !== "deleted" ? <Offer deployment={deployment} /> : null;
}

function Offer({ deployment }: { deployment: Deployment }) {
  const { t } = useI18n();
  const { slug, me } = useOrg();
  const say = usePlanText(me.currency);
  const client = useQueryClient();
  const toast = useToast();
  const key = keys.betterPlan(slug, deployment.name, deployment.revision.number);
  const found = useQuery({ queryKey: key, queryFn: () => api.betterPlan(slug, deployment.name), staleTime: FRESH, refetchInterval: FRESH, retry: false });
  const take = useMutation({
    mutationFn: (planId: string) => api.updateDeployment(slug, deployment.name, { plan_id: planId }),
    onSuccess: (fresh) => {
      client.setQueryData(keys.deployment(slug, deployment.name), fresh);
      toast(t("deployment.scale.saved", { number: String(fresh.revision.number) }));
    },
    onError: () => client.invalidateQueries({ queryKey: key }),
    onSettled: () => client.invalidateQueries({ queryKey: keys.deployments(slug) }),
  });
  const plan = found.data;
  const planId = plan?.plan_id;
  if (!plan?.better || !planId) return null;
  return (
    <Notice tone="info" title={t("better.title")}>
      <p>{t("better.text")}</p>
      {plan.why ? <p>{t("better.why", { why: say("reject", plan.why) })}</p> : null}
      <Differences caption={t("better.title")} differences={plan.differences} currency={me.currency} />
      {take.isError ? <ErrorNotice error={take.error} /> : null}
      <div>
        <Button busy={take.isPending} onClick={() => take.mutate(planId)}>{t("better.take")}</Button>
      </div>
    </Notice>
  );
}
