import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Deployment } from "@/shared/api/types";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";

/** Pause while it runs, Resume while it is paused, Retry when it failed, and Wake now while it sleeps. */
export function StateActions({ deployment }: { deployment: Deployment }) {
  const { t } = useI18n();
  const { slug, can } = useOrg();
  const client = useQueryClient();
  const act = useMutation({
    mutationFn: (what: "pause" | "resume" | "wake") => api[what](slug, deployment.name),
    onSuccess: (fresh) => client.setQueryData(keys.deployment(slug, deployment.name), fresh),
    onSettled: () => client.invalidateQueries({ queryKey: keys.deployments(slug) }),
  });
  if (!can("deployments.write") || deployment.desired === "deleted") return null;
  const resume = deployment.desired === "paused" || deployment.state === "failed";
  const label = deployment.state === "failed" && deployment.desired !== "paused" ? t("common.retry") : t("deployment.resume");
  return (
    <div className="stack-s">
      <div className="row">
        {deployment.state === "asleep" && !resume ? (
          <Button kind="primary" busy={act.isPending} onClick={() => act.mutate("wake")}>{t("deployment.wake")}</Button>
        ) : null}
        {resume ? (
          <Button kind="primary" busy={act.isPending} onClick={() => act.mutate("resume")}>{act.isPending ? t("deployment.resuming") : label}</Button>
        ) : (
          <Button busy={act.isPending} onClick={() => act.mutate("pause")}>{act.isPending ? t("deployment.pausing") : t("deployment.pause")}</Button>
        )}
      </div>
      {act.isError ? <ErrorNotice error={act.error} /> : null}
    </div>
  );
}
