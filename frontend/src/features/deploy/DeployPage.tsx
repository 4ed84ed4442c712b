import { useQuery } from "@tanstack/react-query";
import { useSearchParams } from "wouter";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Model } from "@/shared/api/types";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { ButtonLink } from "@/shared/ui/Button";
import { Loaded } from "@/shared/ui/Loaded";
import { Empty, Page } from "@/shared/ui/Page";
import { AddSample, useModels } from "@/features/models/ModelsPage";
import { EMPTY, fromRevision } from "./form";
import { useDeploy, useNeedsChange } from "./send";
import { Wizard } from "./Wizard";

/** `?model=` chooses the model; `?change=` fills the form with a deployment's needs, to change them. */
export default function DeployPage() {
  const { t } = useI18n();
  const { org, slug, can } = useOrg();
  const models = useModels();
  const [search] = useSearchParams();
  const change = search.get("change");
  if (!models.data || models.data.items.length === 0) {
    return (
      <Page title={t("deploy.title")} scope={org.name} lead={t("deploy.lead")}>
        <Loaded query={models}>
          {() => (
            <Empty text={t("deploy.noModel")}>
              {can("models.write") ? (
                <div className="row">
                  <AddSample />
                  <ButtonLink href={`/o/${slug}/models`}>{t("import.open")}</ButtonLink>
                </div>
              ) : null}
            </Empty>
          )}
        </Loaded>
      </Page>
    );
  }
  const { items } = models.data;
  if (change !== null) return <Change key={change} name={change} models={items} />;
  const asked = items.find((model) => model.name === search.get("model")) ?? items[0];
  return <Deploy models={items} first={asked?.name ?? ""} />;
}

function Deploy({ models, first }: { models: readonly Model[]; first: string }) {
  const { t } = useI18n();
  const send = useDeploy();
  return <Wizard title={t("deploy.title")} lead={t("deploy.lead")} models={models} first={{ ...EMPTY, model: first }} send={send} words={{ submit: t("deploy.submit"), busy: t("deploy.busy") }} />;
}

function Change({ name, models }: { name: string; models: readonly Model[] }) {
  const { t } = useI18n();
  const { org, slug } = useOrg();
  // Once: what is typed must not be overwritten by a state that changes meanwhile.
  const deployment = useQuery({ queryKey: [...keys.deployment(slug, name), "needs"], queryFn: () => api.deployment(slug, name), staleTime: Infinity, gcTime: 0, refetchOnWindowFocus: false });
  if (deployment.data) return <Filled deployment={deployment.data} models={models} />;
  return (
    <Page title={t("deploy.change.title", { name })} scope={org.name}>
      <Loaded query={deployment} rows={6}>{() => null}</Loaded>
    </Page>
  );
}

function Filled({ deployment, models }: { deployment: Parameters<typeof fromRevision>[0]; models: readonly Model[] }) {
  const { t } = useI18n();
  const { draft, kept } = fromRevision(deployment);
  const send = useNeedsChange(deployment.name, kept);
  return (
    <Wizard
      title={t("deploy.change.title", { name: deployment.name })}
      lead={t("deploy.change.lead")}
      models={models}
      first={draft}
      kept={kept}
      changing
      send={send}
      words={{ submit: t("deploy.change.submit"), busy: t("deploy.change.busy") }}
    />
  );
}
