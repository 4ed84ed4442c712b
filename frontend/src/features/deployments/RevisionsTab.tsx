import { useQuery } from "@tanstack/react-query";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Deployment } from "@/shared/api/types";
import { bytes, count } from "@/shared/format/number";
import { dateTime } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Loaded } from "@/shared/ui/Loaded";
import { Badge } from "@/shared/ui/Status";
import { Table } from "@/shared/ui/Table";

export function RevisionsTab({ deployment }: { deployment: Deployment }) {
  const { t, locale } = useI18n();
  const { slug } = useOrg();
  const revisions = useQuery({ queryKey: keys.revisions(slug, deployment.name), queryFn: () => api.revisions(slug, deployment.name) });
  return (
    <Loaded query={revisions}>
      {({ items }) => (
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
            { head: t("common.created"), cell: (each) => dateTime(each.created_at, locale) },
          ]}
        />
      )}
    </Loaded>
  );
}
