import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Deployment, DeploymentState } from "@/shared/api/types";
import { useI18n } from "@/shared/i18n";
import { usePolling } from "@/shared/live/LiveProvider";
import { useOrg } from "@/shared/session";
import { ButtonLink } from "@/shared/ui/Button";
import { Loaded } from "@/shared/ui/Loaded";
import { Empty, Page } from "@/shared/ui/Page";
import { isMoving, StateBadge } from "@/shared/ui/Status";
import { Name, Table, When } from "@/shared/ui/Table";

export function useDeployments() {
  const { slug } = useOrg();
  const idle = usePolling();
  const busy = usePolling(true);
  return useQuery({
    queryKey: keys.deployments(slug),
    queryFn: () => api.deployments(slug),
    refetchInterval: (query) => (query.state.data?.items.some((each) => isMoving(each.state)) ? busy : idle),
  });
}

export function readyReplicas(deployment: Deployment): number {
  return deployment.replicas.filter((replica) => replica.phase === "ready").length;
}

const ATTENTION: readonly DeploymentState[] = ["failed", "degraded"];

export function needsAttention(deployment: Deployment): boolean {
  return ATTENTION.includes(deployment.state);
}

export default function DeploymentsPage() {
  const { t } = useI18n();
  const { org, slug, can } = useOrg();
  const deployments = useDeployments();
  const deploy = can("deployments.write") ? <ButtonLink kind="primary" href={`/o/${slug}/deploy`}>{t("overview.deployModel")}</ButtonLink> : null;
  const empty = deployments.data?.items.length === 0;
  return (
    <Page title={t("deployments.title")} scope={org.name} lead={t("deployments.lead")} actions={empty ? null : deploy}>
      <Loaded query={deployments}>{({ items }) => (items.length === 0 ? <Empty text={t("deployments.empty")}>{deploy}</Empty> : <DeploymentTable items={items} />)}</Loaded>
    </Page>
  );
}

export function DeploymentTable({ items }: { items: readonly Deployment[] }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const sorted = [...items].sort((a, b) => Number(needsAttention(b)) - Number(needsAttention(a)) || a.name.localeCompare(b.name));
  return (
    <Table
      caption={t("deployments.title")}
      rows={sorted}
      rowKey={(each) => each.id}
      columns={[
        { head: t("common.name"), cell: (each) => <Link href={`/o/${slug}/deployments/${each.name}`}><Name>{each.name}</Name></Link> },
        { head: t("common.status"), cell: (each) => <StateBadge deployment={each} /> },
        { head: t("deployments.replicas"), cell: (each) => `${readyReplicas(each)} / ${each.revision.replicas}`, end: true },
        { head: t("deployments.model"), cell: (each) => <Name>{`${each.model} v${each.version}`}</Name> },
        { head: t("deployments.hardware"), cell: (each) => `${each.revision.quantization} · ${each.revision.engine} · ${each.revision.tier}` },
        { head: t("deployments.revision"), cell: (each) => each.revision.number, end: true },
        { head: t("deployments.since"), cell: (each) => <When at={each.state_since} /> },
      ]}
    />
  );
}
