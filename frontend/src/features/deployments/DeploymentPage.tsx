import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "wouter";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Deployment } from "@/shared/api/types";
import { dateTime } from "@/shared/format/time";
import { type PlainKey, useI18n } from "@/shared/i18n";
import { usePolling } from "@/shared/live/LiveProvider";
import { useOrg } from "@/shared/session";
import { Loaded } from "@/shared/ui/Loaded";
import { Page } from "@/shared/ui/Page";
import { isMoving, StateBadge } from "@/shared/ui/Status";
import { Playground } from "@/features/playground/Playground";
import { useModels } from "@/features/models/ModelsPage";
import { readyReplicas } from "./DeploymentsPage";
import { EventsTab } from "./EventsTab";
import { LogsTab } from "./LogsTab";
import { OverviewTab } from "./OverviewTab";
import { RevisionsTab } from "./RevisionsTab";
import { SettingsTab } from "./SettingsTab";
import { StateActions } from "./StateActions";

const TABS = ["overview", "playground", "logs", "events", "revisions", "settings"] as const;
type Tab = (typeof TABS)[number];

function useDeployment(name: string) {
  const { slug } = useOrg();
  const idle = usePolling();
  const busy = usePolling(true);
  return useQuery({
    queryKey: keys.deployment(slug, name),
    queryFn: () => api.deployment(slug, name),
    refetchInterval: (query) => (query.state.data && isMoving(query.state.data.state) ? busy : idle),
  });
}

export default function DeploymentPage() {
  const { name, tab } = useParams<{ name: string; tab?: string }>();
  const { org } = useOrg();
  const deployment = useDeployment(name);
  const shown = TABS.find((each) => each === tab) ?? "overview";
  if (deployment.data) return <Detail deployment={deployment.data} tab={shown} />;
  return (
    <Page title={name} scope={org.name}>
      <Loaded query={deployment} rows={6}>{() => null}</Loaded>
    </Page>
  );
}

function Detail({ deployment, tab }: { deployment: Deployment; tab: Tab }) {
  const { t, locale } = useI18n();
  const { org } = useOrg();
  const chat = useHasChat(deployment);
  const { revision } = deployment;
  return (
    <Page
      title={deployment.model_id}
      scope={org.name}
      lead={
        <div className="row">
          <span role="status"><StateBadge deployment={deployment} /></span>
          <span>
            {t("deployment.summary", {
              revision: String(revision.number),
              ready: readyReplicas(deployment),
              wanted: deployment.wanted_replicas,
              since: dateTime(deployment.state_since, locale),
            })}
          </span>
        </div>
      }
      actions={<StateActions deployment={deployment} />}
    >
      <Tabs name={deployment.name} current={tab} />
      {tab === "overview" ? <OverviewTab deployment={deployment} chat={chat} /> : null}
      {tab === "playground" ? <Try deployment={deployment} chat={chat} /> : null}
      {tab === "logs" ? <LogsTab deployment={deployment} /> : null}
      {tab === "events" ? <EventsTab deployment={deployment} /> : null}
      {tab === "revisions" ? <RevisionsTab deployment={deployment} /> : null}
      {tab === "settings" ? <SettingsTab deployment={deployment} /> : null}
    </Page>
  );
}

function Tabs({ name, current }: { name: string; current: Tab }) {
  const { t } = useI18n();
  const { slug, can } = useOrg();
  const needs: Partial<Record<Tab, boolean>> = { playground: can("infer"), logs: can("logs.read"), settings: can("deployments.write") };
  return (
    <nav className="tabs" aria-label={t("deployment.tabs")}>
      {TABS.filter((tab) => needs[tab] !== false).map((tab) => (
        <Link key={tab} className="tab" href={`/o/${slug}/deployments/${name}${tab === "overview" ? "" : `/${tab}`}`} aria-current={tab === current ? "page" : undefined}>
          {t(`deployment.tab.${tab}` satisfies PlainKey)}
        </Link>
      ))}
    </nav>
  );
}

/** Whether the deployed version has a chat template; unknown counts as yes, the gateway then says what is wrong. */
function useHasChat(deployment: Deployment): boolean {
  const models = useModels();
  const version = models.data?.items.find((each) => each.name === deployment.model)?.versions.find((each) => each.number === deployment.version);
  return version?.facts.has_chat_template !== false;
}

function Try({ deployment, chat }: { deployment: Deployment; chat: boolean }) {
  const { t } = useI18n();
  const { can } = useOrg();
  const serving = readyReplicas(deployment) > 0;
  const blocked = !can("infer") ? t("playground.deniedInfer") : serving ? null : t("playground.notReady");
  return <Playground key={deployment.id} model={deployment.model_id} chat={chat} blocked={blocked} />;
}
