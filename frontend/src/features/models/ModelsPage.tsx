import { useEffect, useRef, useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Model, ModelVersion } from "@/shared/api/types";
import { useIdempotencyKey } from "@/shared/api/useIdempotencyKey";
import { bytes, compact, share } from "@/shared/format/number";
import { dateTime } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { usePolling } from "@/shared/live/LiveProvider";
import { useOrg } from "@/shared/session";
import { Link } from "wouter";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Loaded } from "@/shared/ui/Loaded";
import { Card, Empty, Page } from "@/shared/ui/Page";
import { Facts } from "@/shared/ui/Table";
import { useToast } from "@/shared/ui/Toasts";
import type { ImportForm } from "./form";
import { importApi, importKeys, type ImportDetail, OVER } from "./importApi";
import { ImportDialog } from "./ImportDialog";
import { ImportsCard } from "./ImportsCard";
import { LibraryCard } from "./LibraryCard";
import { Conversions } from "./Conversions";
import { sendParts } from "./upload";
import { VersionActions } from "./VersionActions";

export function useModels() {
  const { slug } = useOrg();
  return useQuery({ queryKey: keys.models(slug), queryFn: () => api.models(slug), refetchInterval: usePolling() });
}

export default function ModelsPage() {
  const { t, locale } = useI18n();
  const { org, slug, can } = useOrg();
  const models = useModels();
  const imports = useQuery({ queryKey: importKeys.imports(slug), queryFn: () => importApi.list(slug), refetchInterval: (query) => (query.state.data?.items.some((each) => !OVER.includes(each.state)) ? 2000 : false) });
  const storage = useQuery({ queryKey: importKeys.storage(slug), queryFn: () => importApi.storage(slug) });
  const [asking, setAsking] = useState<Partial<ImportForm> | null>(null);
  const uploads = useUploads();
  const some = (models.data?.items.length ?? 0) > 0;
  const write = can("models.write");
  const used = storage.data;
  return (
    <Page
      title={t("models.title")}
      scope={org.name}
      lead={t("models.lead")}
      actions={
        <>
          {write ? <Button kind={some ? "plain" : "primary"} onClick={() => setAsking({})}>{t("import.open")}</Button> : null}
          {some && can("deployments.write") ? <ButtonLink kind="primary" href={`/o/${slug}/deploy`}>{t("overview.deployModel")}</ButtonLink> : null}
        </>
      }
    >
      {asking !== null ? <ImportDialog start={asking} onClose={() => setAsking(null)} onUpload={uploads.send} /> : null}
      <div className="stack">
        <ImportsCard imports={imports.data?.items ?? []} sending={uploads.sending} onSend={uploads.send} onRetry={setAsking} />
        {uploads.error !== null ? <ErrorNotice error={uploads.error} /> : null}
        <Loaded query={models}>
          {({ items }) => (
            <div className="stack">
              {items.length === 0 ? <Empty text={t("models.empty")}>{write ? <AddSample /> : null}</Empty> : null}
              {items.map((model) => <ModelCard key={model.id} model={model} />)}
              {items.length > 0 && write && !items.some((model) => model.versions.some((version) => version.source === "sample")) ? <AddSample quiet /> : null}
              {used && items.length > 0 ? (
                <p className="small muted">{used.quota === null ? t("storage.used", { used: bytes(used.used, locale) }) : t("storage.of", { used: bytes(used.used, locale), quota: bytes(used.quota, locale) })}</p>
              ) : null}
              <LibraryCard here={new Set(items.map((model) => model.name))} onAsk={setAsking} />
            </div>
          )}
        </Loaded>
      </div>
    </Page>
  );
}

/** Uploads of this page. They end with it; what has arrived stays, and the upload goes on where it was. */
function useUploads() {
  const { slug } = useOrg();
  const client = useQueryClient();
  const [sending, setSending] = useState<ReadonlySet<string>>(new Set());
  const [error, setError] = useState<unknown>(null);
  const ended = useRef(new AbortController());
  useEffect(() => {
    const controller = new AbortController();
    ended.current = controller;
    return () => controller.abort();
  }, []);
  const send = (detail: ImportDetail, files: readonly File[]) => {
    const { signal } = ended.current;
    setError(null);
    setSending((now) => new Set([...now, detail.id]));
    void sendParts(slug, detail, files, signal)
      .catch((reason: unknown) => {
        if (!signal.aborted) setError(reason);
      })
      // The list is fetched first: the one from before still says that parts are missing, and the page would ask for the files again.
      .finally(() =>
        client.invalidateQueries({ queryKey: importKeys.imports(slug) }).finally(() =>
          setSending((now) => new Set([...now].filter((each) => each !== detail.id))),
        ),
      );
  };
  return { sending, error, send };
}

export function AddSample({ quiet = false }: { quiet?: boolean }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const client = useQueryClient();
  const toast = useToast();
  const idempotency = useIdempotencyKey();
  const add = useMutation({
    mutationFn: () => api.addSampleModel(slug, idempotency.keyFor("sample")),
    onSuccess: (model) => toast(t("models.added", { name: model.name })),
    onSettled: (_, error) => {
      idempotency.settle(error);
      return client.invalidateQueries({ queryKey: keys.models(slug) });
    },
  });
  return (
    <div className="stack-s">
      <div>
        <Button kind={quiet ? "plain" : "primary"} busy={add.isPending} onClick={() => add.mutate()}>{add.isPending ? t("models.adding") : t("models.addSample")}</Button>
      </div>
      {add.isError ? <ErrorNotice error={add.error} /> : null}
    </div>
  );
}

/** The version with the highest number. */
export function newest(model: Model): ModelVersion | undefined {
  return model.versions.reduce<ModelVersion | undefined>((best, each) => (best === undefined || each.number > best.number ? each : best), undefined);
}

function ModelCard({ model }: { model: Model }) {
  const { t, locale, lookup } = useI18n();
  const { slug, can } = useOrg();
  const version = newest(model);
  const facts = version?.facts;
  const deployments =
    model.deployments.length === 0
      ? t("models.notDeployed")
      : model.deployments.map((name, index) => (
          <span key={name}>
            {index > 0 ? ", " : ""}
            <Link href={`/o/${slug}/deployments/${name}`}>{name}</Link>
          </span>
        ));
  const known = (value: number | undefined, text: (value: number) => string) => (value === undefined ? t("common.unknown") : text(value));
  return (
    <Card
      title={model.name}
      actions={
        can("deployments.write") && version ? (
          <ButtonLink size="small" href={`/o/${slug}/deploy?model=${encodeURIComponent(model.name)}`} label={t("models.deployNamed", { name: model.name })}>
            {t("models.deploy")}
          </ButtonLink>
        ) : null
      }
    >
      <div className="stack">
        {model.description ? <p className="muted">{model.description}</p> : null}
        {version ? (
          <div className="grid-2">
            <Facts
              items={[
                [t("models.version"), `v${version.number} · ${dateTime(version.created_at, locale)}`],
                [t("models.source"), lookup(`models.source.${version.source}`) ?? version.source],
                [t("models.licence"), version.licence || t("common.unknown")],
                ...(version.origin ? [[t("models.origin"), version.origin] as const] : []),
                ...(version.base !== null ? [[t("models.base"), version.base] as const] : []),
                [t("models.usedBy"), deployments],
              ]}
            />
            <Facts
              items={[
                [t("models.architecture"), facts?.architecture ?? t("common.unknown")],
                [t("models.parameters"), known(facts?.parameters, (value) => compact(value, "en"))],
                [t("models.context"), known(facts?.context_length, (n) => t("models.contextTokens", { n }))],
                [t("models.chat"), t(facts?.has_chat_template === false ? "models.chat.no" : "models.chat.yes")],
                [t("models.artefacts"), version.artefacts.map((each) => `${each.quantization} (${each.format.toUpperCase()}, ${bytes(each.size, locale)})`).join(" · ") || t("common.none")],
                ...version.artefacts.flatMap((each) => (each.quality === null ? [] : [[each.quantization, t("conversion.quality", { share: share(each.quality.agreement, locale), reference: each.quality.reference })] as const])),
              ]}
            />
          </div>
        ) : null}
        {version?.notes.map((note) => <p key={note.message} className="small muted">{note.message}</p>)}
        {version ? <Conversions model={model.name} version={version} /> : null}
        <VersionActions model={model} />
      </div>
    </Card>
  );
}
