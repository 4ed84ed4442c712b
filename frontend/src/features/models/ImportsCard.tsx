import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { keys } from "@/shared/api/cache";
import { ApiError } from "@/shared/api/client";
import { bytes, duration } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { ErrorNotice, useErrorText } from "@/shared/ui/ErrorNotice";
import { Notice } from "@/shared/ui/Notice";
import { Card } from "@/shared/ui/Page";
import type { ImportForm } from "./form";
import { type Import, importApi, type ImportDetail, OVER } from "./importApi";

interface Props {
  imports: readonly Import[];
  sending: ReadonlySet<string>;
  onSend: (detail: ImportDetail, files: readonly File[]) => void;
  onRetry: (form: Partial<ImportForm>) => void;
}

/** Imports on their way, and the last few that ended. */
export function ImportsCard({ imports, sending, onSend, onRetry }: Props) {
  const { t } = useI18n();
  const shown = [...imports.filter((each) => !OVER.includes(each.state)), ...imports.filter((each) => OVER.includes(each.state)).slice(0, 3)];
  if (shown.length === 0) return null;
  return (
    <Card title={t("import.imports")}>
      <div className="stack">
        {shown.map((each) => <Row key={each.id} run={each} sending={sending.has(each.id)} onSend={onSend} onRetry={onRetry} />)}
      </div>
    </Card>
  );
}

function Row({ run, sending, onSend, onRetry }: { run: Import; sending: boolean } & Pick<Props, "onSend" | "onRetry">) {
  const { t, locale, lookup } = useI18n();
  const { slug, can } = useOrg();
  const client = useQueryClient();
  const state = lookup(`import.state.${run.state}`) ?? run.state;
  const cancel = useMutation({
    mutationFn: () => importApi.cancel(slug, run.id),
    onSettled: () => client.invalidateQueries({ queryKey: keys.models(slug) }),
  });
  const over = OVER.includes(run.state);
  const total = run.bytes_total ?? 0;
  const facts = [
    state,
    total > 0 ? t("import.progress", { done: bytes(run.bytes_done, locale), total: bytes(total, locale) }) : "",
    run.rate ? t("import.rate", { rate: bytes(run.rate, locale) }) : "",
    run.seconds_left !== null ? t("import.left", { time: duration(run.seconds_left * 1000) }) : "",
  ].filter(Boolean);
  return (
    <div className="stack-s" data-import={run.state}>
      <div className="row">
        <strong>{run.name}</strong>
        <span className="muted">{run.origin || (lookup(`import.from.${run.source}`) ?? run.source)}</span>
        {run.version !== null ? <span className="muted">{t("import.becameVersion", { n: run.version })}</span> : null}
        {run.state === "done" && can("deployments.write") ? (
          <ButtonLink size="small" kind="primary" href={`/o/${slug}/deploy?model=${encodeURIComponent(run.name)}`} label={t("models.deployNamed", { name: run.name })}>{t("library.deploy")}</ButtonLink>
        ) : null}
        {!over && can("models.write") ? (
          <Button size="small" busy={cancel.isPending} aria-label={t("import.cancelNamed", { name: run.name })} onClick={() => cancel.mutate()}>{t("import.cancel")}</Button>
        ) : null}
      </div>
      {over ? <p className="small muted">{state}</p> : (
        <>
          <progress aria-label={facts.join(", ")} value={run.bytes_done} max={total > 0 ? total : 1} />
          <p className="small muted" role="status">{facts.join(" · ")}</p>
        </>
      )}
      {run.state === "receiving" && !sending && can("models.write") ? <Resume run={run} onSend={onSend} /> : null}
      {run.code ? <Trouble run={run} onRetry={onRetry} /> : null}
      {cancel.isError ? <ErrorNotice error={cancel.error} /> : null}
    </div>
  );
}

function Trouble({ run, onRetry }: { run: Import; onRetry: Props["onRetry"] }) {
  const { t } = useI18n();
  const text = useErrorText();
  const told = text(new ApiError(run.code, run.message, 422, run.params));
  const choices = Array.isArray(run.params["choices"]) ? run.params["choices"].filter((each): each is string => typeof each === "string") : [];
  if (run.state !== "failed") return <p className="small muted">{`${told} ${t("import.again")}`}</p>;
  return (
    <Notice tone="danger" role="alert">
      <p>{told}</p>
      {choices.length > 0 ? (
        <div className="stack-s">
          <p>{t("import.choose")}</p>
          <div className="row">
            {choices.map((file) => (
              <Button key={file} size="small" aria-label={t("import.take", { file })} onClick={() => onRetry({ ...run.request, source: run.source, name: run.name, files: file })}>{file}</Button>
            ))}
          </div>
        </div>
      ) : null}
    </Notice>
  );
}

function Resume({ run, onSend }: { run: Import; onSend: Props["onSend"] }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const [lost, setLost] = useState(false);
  return (
    <div className="stack-s">
      <p className="small muted">{t("import.waitsForUpload")}</p>
      <label className="button" data-size="small">
        {t("import.continue")}
        <input
          type="file"
          multiple
          className="visually-hidden"
          onChange={(event) => {
            const files = Array.from(event.target.files ?? []);
            void importApi.get(slug, run.id).then((detail) => {
              const same = detail.files.every((each) => files.some((file) => file.name === each.name && file.size === each.size));
              setLost(!same);
              if (same) onSend(detail, files);
            });
          }}
        />
      </label>
      {lost ? <Notice tone="warn" role="alert"><p>{t("import.lostFiles")}</p></Notice> : null}
    </div>
  );
}
