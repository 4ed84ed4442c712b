import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { ApiError } from "@/shared/api/client";
import { useIdempotencyKey } from "@/shared/api/useIdempotencyKey";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { Dialog } from "@/shared/ui/Dialog";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Input, Segments, Select, TextArea } from "@/shared/ui/Field";
import { EMPTY, type ImportForm, KIND, NEW, suggestedName, toCredential, toRequest } from "./form";
import { importApi, importKeys, type ImportDetail, type Source } from "./importApi";
import { useModels } from "./ModelsPage";

interface Props {
  start?: Partial<ImportForm>;
  onClose: () => void;
  onUpload: (detail: ImportDetail, files: readonly File[]) => void;
}

export function ImportDialog({ start = {}, onClose, onUpload }: Props) {
  const { t } = useI18n();
  const { slug, me } = useOrg();
  const client = useQueryClient();
  const [form, setForm] = useState<ImportForm>({ ...EMPTY, ...start });
  const [files, setFiles] = useState<readonly File[]>([]);
  const credentialKey = useIdempotencyKey();
  const importKey = useIdempotencyKey();
  const set = (change: Partial<ImportForm>) => setForm((now) => ({ ...now, ...change }));
  const begin = useMutation({
    mutationFn: async () => {
      const made = toCredential(form);
      if (made !== null) {
        await importApi.addCredential(slug, made, credentialKey.keyFor(made));
        set({ credential: made.name, secret: "" }); // it is kept now: a second try must not make it again
        await client.invalidateQueries({ queryKey: importKeys.credentials(slug) });
      }
      const body = toRequest(form, files, made === null ? form.credential : made.name);
      return importApi.start(slug, body, importKey.keyFor(body));
    },
    onSuccess: (detail) => {
      if (detail.source === "upload") onUpload(detail, files);
      onClose();
    },
    onSettled: (_, error) => {
      importKey.settle(error);
      credentialKey.settle(error);
      return client.invalidateQueries({ queryKey: importKeys.imports(slug) });
    },
  });
  const sources: Source[] = me.is_operator ? ["hub", "upload", "s3", "url", "path"] : ["hub", "upload", "s3", "url"];
  const wrong = (field: string) => (begin.error instanceof ApiError && begin.error.field === field ? begin.error.message : null);
  return (
    <Dialog title={t("import.title")} onClose={onClose} hold={begin.isPending}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (!begin.isPending) begin.mutate();
        }}
      >
        <Segments
          label={t("import.from")}
          value={form.source}
          options={sources.map((value) => ({ value, label: t(`import.from.${value}`) }))}
          onChange={(source) => set({ source, credential: "" })}
        />
        <SourceFields form={form} set={set} files={files} setFiles={setFiles} wrong={wrong} />
        <Input label={t("import.name")} help={t("import.name.help")} error={wrong("name")} value={form.name} required maxLength={63} pattern="[a-z0-9][a-z0-9._\-]*" autoComplete="off" onChange={(event) => set({ name: event.target.value })} />
        <CredentialFields form={form} set={set} wrong={wrong} />
        <BaseField form={form} set={set} wrong={wrong} />
        <Input label={t("import.licence")} help={t("import.licence.help")} error={wrong("licence")} value={form.licence} maxLength={80} onChange={(event) => set({ licence: event.target.value })} />
        {begin.isError ? <ErrorNotice error={begin.error} /> : null}
        <div className="row">
          <Button type="submit" kind="primary" busy={begin.isPending} blocked={form.source === "upload" && files.length === 0 ? t("import.upload.none") : null}>
            {begin.isPending ? t("import.starting") : t("import.start")}
          </Button>
          <Button onClick={onClose} blocked={begin.isPending ? t("import.starting") : null}>{t("import.close")}</Button>
        </div>
      </form>
    </Dialog>
  );
}

interface Fields {
  form: ImportForm;
  set: (change: Partial<ImportForm>) => void;
  wrong: (field: string) => string | null;
}

function SourceFields({ form, set, wrong, files, setFiles }: Fields & { files: readonly File[]; setFiles: (files: readonly File[]) => void }) {
  const { t } = useI18n();
  const named = (change: Partial<ImportForm>, text: string, before: string) =>
    set(form.name === "" || form.name === suggestedName(before) ? { ...change, name: suggestedName(text) } : change);
  const pattern = <Input label={t("import.files")} help={t("import.files.help")} error={wrong("files")} value={form.files} onChange={(event) => set({ files: event.target.value })} />;
  switch (form.source) {
    case "hub":
      return (
        <>
          <Input label={t("import.repository")} help={t("import.repository.help")} error={wrong("repository")} value={form.repository} required autoComplete="off" onChange={(event) => named({ repository: event.target.value }, event.target.value, form.repository)} />
          <Input label={t("import.revision")} help={t("import.revision.help")} error={wrong("revision")} value={form.revision} onChange={(event) => set({ revision: event.target.value })} />
          {pattern}
          <Input label={t("import.endpoint")} help={t("import.endpoint.help")} error={wrong("endpoint")} value={form.endpoint} onChange={(event) => set({ endpoint: event.target.value })} />
        </>
      );
    case "s3":
      return (
        <>
          <Input label={t("import.uri")} help={t("import.uri.help")} error={wrong("uri")} value={form.uri} required onChange={(event) => named({ uri: event.target.value }, event.target.value, form.uri)} />
          {pattern}
        </>
      );
    case "url":
      return <TextArea label={t("import.urls")} help={t("import.urls.help")} error={wrong("urls")} value={form.urls} required rows={4} onChange={(event) => named({ urls: event.target.value }, event.target.value, form.urls)} />;
    case "path":
      return (
        <>
          <Input label={t("import.path")} help={t("import.path.help")} error={wrong("path")} value={form.path} required onChange={(event) => named({ path: event.target.value }, event.target.value, form.path)} />
          {pattern}
        </>
      );
    default:
      return (
        <Input
          label={t("import.upload")}
          help={t("import.upload.help")}
          error={wrong("upload")}
          type="file"
          multiple
          required
          onChange={(event) => {
            const chosen = Array.from(event.target.files ?? []);
            setFiles(chosen);
            const [first] = chosen;
            if (first !== undefined && files.length === 0 && form.name === "") set({ name: suggestedName(first.name) });
          }}
        />
      );
  }
}

function CredentialFields({ form, set, wrong }: Fields) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const kind = form.source in KIND ? KIND[form.source as keyof typeof KIND] : null;
  const known = useQuery({ queryKey: importKeys.credentials(slug), queryFn: () => importApi.credentials(slug), enabled: kind !== null });
  if (kind === null) return null;
  return (
    <>
      <Select label={t("import.credential")} help={t("import.credential.help")} error={wrong("credential")} value={form.credential} onChange={(event) => set({ credential: event.target.value })}>
        <option value="">{t("import.credential.none")}</option>
        {(known.data?.items ?? []).filter((each) => each.kind === kind).map((each) => (
          <option key={each.name} value={each.name}>{`${each.name} (${each.host})`}</option>
        ))}
        <option value={NEW}>{t("import.credential.new")}</option>
      </Select>
      {form.credential === NEW ? (
        <>
          <Input label={t("import.credential.name")} value={form.credentialName} required maxLength={63} autoComplete="off" onChange={(event) => set({ credentialName: event.target.value })} />
          {kind === "s3" ? (
            <>
              <Input label={t("import.credential.keyId")} error={wrong("key_id")} value={form.keyId} required autoComplete="off" onChange={(event) => set({ keyId: event.target.value })} />
              <Input label={t("import.credential.region")} error={wrong("region")} value={form.region} onChange={(event) => set({ region: event.target.value })} />
              <Input label={t("import.credential.endpoint")} help={t("import.credential.endpointHelp")} value={form.credentialEndpoint} onChange={(event) => set({ credentialEndpoint: event.target.value })} />
            </>
          ) : null}
          {kind === "bearer" ? <Input label={t("import.credential.host")} error={wrong("host")} value={form.host} required onChange={(event) => set({ host: event.target.value })} /> : null}
          <Input label={kind === "s3" ? t("import.credential.secret") : t("import.credential.token")} error={wrong("secret")} type="password" value={form.secret} required autoComplete="off" onChange={(event) => set({ secret: event.target.value })} />
        </>
      ) : null}
    </>
  );
}

function BaseField({ form, set, wrong }: Fields) {
  const { t } = useI18n();
  const models = useModels();
  const whole = (models.data?.items ?? []).filter((model) => model.versions.some((version) => version.base === null));
  return (
    <Select label={t("import.base")} help={t("import.base.help")} error={wrong("base")} value={form.base} onChange={(event) => set({ base: event.target.value })}>
      <option value="">{t("import.base.none")}</option>
      {whole.map((model) => <option key={model.id} value={model.name}>{model.name}</option>)}
    </Select>
  );
}
