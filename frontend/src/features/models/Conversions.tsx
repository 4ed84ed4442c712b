import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { keys } from "@/shared/api/cache";
import type { ModelVersion } from "@/shared/api/types";
import { useIdempotencyKey } from "@/shared/api/useIdempotencyKey";
import { duration } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { Dialog } from "@/shared/ui/Dialog";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Select, TextArea } from "@/shared/ui/Field";
import { Notice } from "@/shared/ui/Notice";
import { useToast } from "@/shared/ui/Toasts";
import { type Conversion, conversionApi, conversionKey, ENDED, formatsFor, TARGETS } from "./conversionApi";

/** Artefacts of a version that are being made, and the way to ask for one. */
export function Conversions({ model, version }: { model: string; version: ModelVersion }) {
  const { t } = useI18n();
  const { slug, can } = useOrg();
  const [asking, setAsking] = useState(false);
  const conversions = useQuery({
    queryKey: conversionKey(slug),
    queryFn: () => conversionApi.list(slug),
    refetchInterval: (query) => (query.state.data?.items.some((each) => !ENDED.includes(each.state)) ? 2000 : false),
  });
  const own = (conversions.data?.items ?? []).filter((each) => each.model === model && each.version === version.number);
  // What ended well is an artefact by now; of what did not, the last word stays.
  const shown = own.filter((each, index) => !ENDED.includes(each.state) || (index === 0 && each.state !== "done" && each.state !== "cancelled"));
  const possible = formatsFor(version.artefacts).length > 0;
  return (
    <>
      {shown.map((each) => <Row key={each.id} conversion={each} />)}
      {can("models.write") && possible ? (
        <div>
          <Button size="small" kind="quiet" aria-label={t("conversion.openNamed", { name: model })} onClick={() => setAsking(true)}>{t("conversion.open")}</Button>
        </div>
      ) : null}
      {asking ? <Ask model={model} version={version} onClose={() => setAsking(false)} /> : null}
    </>
  );
}

function Row({ conversion }: { conversion: Conversion }) {
  const { t, lookup } = useI18n();
  const { slug, can } = useOrg();
  const client = useQueryClient();
  const cancel = useMutation({
    mutationFn: () => conversionApi.cancel(slug, conversion.id),
    onSettled: () => client.invalidateQueries({ queryKey: keys.models(slug) }),
  });
  const label = `${conversion.format.toUpperCase()} ${conversion.quantization}`;
  if (ENDED.includes(conversion.state)) {
    return <Notice tone="danger" role="alert"><p>{t("conversion.ended", { label, why: conversion.message })}</p></Notice>;
  }
  const facts = [
    lookup(`conversion.state.${conversion.state}`) ?? conversion.state,
    conversion.seconds_left !== null ? t("import.left", { time: duration(conversion.seconds_left * 1000) }) : "",
  ].filter(Boolean);
  const known = conversion.total > 0;
  return (
    <div className="stack-s" data-conversion={conversion.state}>
      <div className="row">
        <strong>{label}</strong>
        {can("models.write") ? (
          <Button size="small" busy={cancel.isPending} aria-label={t("conversion.cancelNamed", { label })} onClick={() => cancel.mutate()}>{t("import.cancel")}</Button>
        ) : null}
      </div>
      {known ? <progress aria-label={facts.join(", ")} value={conversion.done} max={conversion.total} /> : <progress aria-label={facts.join(", ")} />}
      <p className="small muted" role="status">{facts.join(" · ")}</p>
      {cancel.isError ? <ErrorNotice error={cancel.error} /> : null}
    </div>
  );
}

function Ask({ model, version, onClose }: { model: string; version: ModelVersion; onClose: () => void }) {
  const { t, lookup } = useI18n();
  const { slug } = useOrg();
  const client = useQueryClient();
  const toast = useToast();
  const idempotency = useIdempotencyKey();
  const formats = formatsFor(version.artefacts);
  const [format, setFormat] = useState(formats[0] ?? "gguf");
  const open = (TARGETS[format] ?? []).filter((name) => !version.artefacts.some((each) => each.format === format && each.quantization === name));
  const [wanted, setWanted] = useState("Q4_K_M");
  const quantization = open.includes(wanted) ? wanted : (open[0] ?? "");
  const [sample, setSample] = useState("");
  const body = { format, quantization, ...(sample ? { sample_text: sample } : {}) } as Parameters<typeof conversionApi.start>[3];
  const start = useMutation({
    mutationFn: () => conversionApi.start(slug, model, version.number, body, idempotency.keyFor({ model, version: version.number, ...body })),
    onSuccess: () => {
      toast(t("conversion.started", { label: `${format.toUpperCase()} ${quantization}` }));
      onClose();
    },
    onSettled: (_, error) => {
      idempotency.settle(error);
      return client.invalidateQueries({ queryKey: keys.models(slug) });
    },
  });
  return (
    <Dialog title={t("conversion.title", { name: model })} onClose={onClose} hold={start.isPending}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          start.mutate();
        }}
      >
        <p className="muted">{t("conversion.lead")}</p>
        <Select label={t("conversion.format")} value={format} onChange={(event) => setFormat(event.target.value)}>
          {formats.map((each) => <option key={each} value={each}>{lookup(`conversion.format.${each}`) ?? each}</option>)}
        </Select>
        <Select label={t("conversion.quantization")} value={quantization} onChange={(event) => setWanted(event.target.value)}>
          {open.map((each) => <option key={each} value={each}>{each}</option>)}
        </Select>
        <TextArea label={t("conversion.sample")} help={t("conversion.sampleHelp")} value={sample} minLength={200} maxLength={100000} rows={4} onChange={(event) => setSample(event.target.value)} />
        {start.isError ? <ErrorNotice error={start.error} /> : null}
        <div className="row">
          {quantization ? <Button kind="primary" type="submit" busy={start.isPending}>{t("conversion.start")}</Button> : null}
          <Button onClick={onClose}>{t("import.close")}</Button>
        </div>
      </form>
    </Dialog>
  );
}
