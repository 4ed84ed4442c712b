import { useQuery } from "@tanstack/react-query";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Deployment } from "@/shared/api/types";
import { bytes, count } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Loaded } from "@/shared/ui/Loaded";
import { Badge } from "@/shared/ui/Status";
import { Table, When } from "@/shared/ui/Table";
import { type RolloutAct, useRollout } from "./useRollout";

const backTo = (act: RolloutAct | undefined) => (typeof act === "object" ? act.back : undefined);

export function RevisionsTab({ deployment }: { deployment: Deployment }) {
  const { t, locale } = useI18n();
  const { slug, can } = useOrg();
  const act = useRollout(deployment.name);
  const revisions = useQuery({ queryKey: keys.revisions(slug, deployment.name), queryFn: () => api.revisions(slug, deployment.name) });
  return (
    <Loaded query={revisions}>
      {({ items }) => (
        <div className="stack">
          {act.isError ? <ErrorNotice error={act.error} /> : null}
          <Table
            caption={t("deployment.tab.revisions")}
            rows={items}
            rowKey={(each) => String(each.number)}
            columns={[
              {
                head: t("deployments.revision"),
                cell: (each) => (
                  <span className="row">
                    {t("deployment.rev", { number: String(each.number) })}
                    {each.number === deployment.stable && each.number !== deployment.revision.number ? <Badge tone="ok" icon="check">{t("deployment.rev.good")}</Badge> : null}
                    {each.number === deployment.revision.number ? <Badge tone="info" icon="check">{t("deployment.rev.current")}</Badge> : null}
                  </span>
                ),
              },
              { head: t("plan.artefact"), cell: (each) => `${each.quantization} · ${each.engine}` },
              { head: t("plan.tier"), cell: (each) => each.tier },
              { head: t("plan.context"), cell: (each) => count(each.context_length, locale), end: true },
              { head: t("plan.slots"), cell: (each) => each.slots, end: true },
              { head: t("plan.replicas"), cell: (each) => each.replicas, end: true },
              { head: t("deployment.memory"), cell: (each) => bytes(each.memory, locale), end: true },
              { head: t("common.created"), cell: (each) => <When at={each.created_at} /> },
              { head: t("deployment.rev.author"), cell: (each) => (each.created_by ? each.created_by.name || each.created_by.email : t("deployment.byBerth")) },
              { head: t("deployment.rev.reason"), cell: (each) => each.reason || "–" },
              {
                head: "",
                cell: (each) =>
                  can("deployments.write") && each.number !== deployment.revision.number ? (
                    <Button busy={act.isPending && backTo(act.variables) === each.number} onClick={() => act.mutate({ back: each.number })}>{t("deployment.rev.back")}</Button>
                  ) : null,
              },
            ]}
          />
        </div>
      )}
    </Loaded>
  );
}
