import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Deployment, DeploymentScaling } from "@/shared/api/types";
import { type PlainKey, useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Input, Select } from "@/shared/ui/Field";
import { Card } from "@/shared/ui/Page";
import { useToast } from "@/shared/ui/Toasts";
import { draftsOf, NEW_PEAK, type PeakDraft, RANGES, readNumber, toPeak } from "./scaling";

/** Idle time, patience and declared peaks. What was saved is shown; nothing of it makes a new revision. */
export function ScalingSettings({ deployment }: { deployment: Deployment }) {
  const { slug } = useOrg();
  const { data } = useQuery({ queryKey: keys.deploymentScaling(slug, deployment.name), queryFn: () => api.deploymentScaling(slug, deployment.name), staleTime: Infinity });
  if (!data) return null;
  return (
    <>
      <Patience deployment={deployment} scaling={data} />
      <Peaks name={deployment.name} scaling={data} />
    </>
  );
}

function Patience({ deployment, scaling }: { deployment: Deployment; scaling: DeploymentScaling }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const client = useQueryClient();
  const toast = useToast();
  const [text, setText] = useState({
    sleep: deployment.sleep_after_seconds === null ? "" : String(deployment.sleep_after_seconds),
    stabilisation: String(scaling.stabilisation_seconds),
    headRoom: scaling.head_room === null ? "" : String(scaling.head_room),
    share: String(Math.round(scaling.share * 1e4) / 100),
  });
  type Name = keyof typeof text;
  const optional: readonly Name[] = ["sleep", "headRoom"];
  const value = (name: Name) => (text[name].trim() === "" && optional.includes(name) ? null : readNumber(text[name], RANGES[name]));
  const wrong = (name: Name) => value(name) === null && !(text[name].trim() === "" && optional.includes(name));
  const broken = (Object.keys(text) as Name[]).some(wrong);
  const save = useMutation({
    mutationFn: async () => {
      const fresh = await api.changeScaling(slug, deployment.name, {
        stabilisation_seconds: value("stabilisation") ?? scaling.stabilisation_seconds,
        head_room: value("headRoom"),
        share: (value("share") ?? scaling.share * 100) / 100,
      });
      const sleep = value("sleep");
      const changed = await api.updateDeployment(slug, deployment.name, { sleep_after_seconds: sleep === null ? null : Math.round(sleep) });
      return { fresh, changed };
    },
    onSuccess: ({ fresh, changed }) => {
      client.setQueryData(keys.deploymentScaling(slug, deployment.name), fresh);
      client.setQueryData(keys.deployment(slug, deployment.name), changed);
      toast(t("scaling.saved"));
    },
  });
  const field = (name: Name) => ({
    inputMode: "decimal" as const,
    autoComplete: "off",
    value: text[name],
    error: wrong(name) ? t("scaling.wrong", RANGES[name]) : null,
    onChange: (event: { target: { value: string } }) => setText((now) => ({ ...now, [name]: event.target.value })),
  });
  return (
    <Card title={t("scaling.patience")}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (!broken) save.mutate();
        }}
      >
        <Input label={t("scaling.sleep")} help={t("scaling.sleepHelp")} {...field("sleep")} />
        <Input label={t("scaling.stabilisation")} help={t("scaling.stabilisationHelp")} {...field("stabilisation")} />
        <Input label={t("scaling.headRoom")} help={t("scaling.headRoomHelp")} {...field("headRoom")} />
        <Input label={t("scaling.share")} help={t("scaling.shareHelp")} {...field("share")} />
        {save.isError ? <ErrorNotice error={save.error} /> : null}
        <div>
          <Button type="submit" busy={save.isPending} blocked={broken ? t("deploy.fixFields") : null}>{t("scaling.save")}</Button>
        </div>
      </form>
    </Card>
  );
}

function Peaks({ name, scaling }: { name: string; scaling: DeploymentScaling }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const client = useQueryClient();
  const toast = useToast();
  const [drafts, setDrafts] = useState(() => draftsOf(scaling));
  const peaks = drafts.map(toPeak);
  const broken = peaks.includes(null);
  const save = useMutation({
    mutationFn: () => api.setPeaks(slug, name, peaks.filter((peak) => peak !== null)),
    onSuccess: (fresh) => {
      client.setQueryData(keys.deploymentScaling(slug, name), fresh);
      toast(t("scaling.peaks.saved"));
    },
  });
  const edit = (index: number, change: Partial<PeakDraft>) => setDrafts((now) => now.map((each, at) => (at === index ? { ...each, ...change } : each)));
  return (
    <Card title={t("scaling.peaks")}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (!broken) save.mutate();
        }}
      >
        <p>{t("scaling.peaks.text")}</p>
        {drafts.map((draft, index) => (
          <PeakFields key={index} draft={draft} wrong={peaks[index] === null} onChange={(change) => edit(index, change)} onRemove={() => setDrafts((now) => now.filter((_, at) => at !== index))} />
        ))}
        {save.isError ? <ErrorNotice error={save.error} /> : null}
        <div className="row">
          <Button onClick={() => setDrafts((now) => [...now, NEW_PEAK])}>{t("scaling.peaks.add")}</Button>
          <Button type="submit" busy={save.isPending} blocked={broken ? t("scaling.peaks.wrong") : null}>{t("scaling.peaks.save")}</Button>
        </div>
      </form>
    </Card>
  );
}

function PeakFields({ draft, wrong, onChange, onRemove }: { draft: PeakDraft; wrong: boolean; onChange: (change: Partial<PeakDraft>) => void; onRemove: () => void }) {
  const { t } = useI18n();
  const words = { once: "scaling.every.once", day: "scaling.every.day", week: "scaling.every.week" } as const satisfies Record<PeakDraft["every"], PlainKey>;
  const units = { replicas: "plan.replicas", rate: "scaling.peaks.rate" } as const satisfies Record<PeakDraft["unit"], PlainKey>;
  const pick = <T extends string>(all: Record<T, PlainKey>, value: string, fallback: T): T => (Object.hasOwn(all, value) ? (value as T) : fallback);
  return (
    <fieldset className="stack-s">
      <div className="field-row">
        <Input type="datetime-local" label={t("scaling.peaks.start")} value={draft.start} onChange={(event) => onChange({ start: event.target.value })} />
        <Input type="datetime-local" label={t("scaling.peaks.end")} value={draft.end} onChange={(event) => onChange({ end: event.target.value })} />
      </div>
      <div className="field-row">
        <Select label={t("scaling.peaks.every")} value={draft.every} onChange={(event) => onChange({ every: pick(words, event.target.value, "once") })}>
          {(Object.keys(words) as PeakDraft["every"][]).map((each) => (
            <option key={each} value={each}>{t(words[each])}</option>
          ))}
        </Select>
        <Select label={t("scaling.peaks.unit")} value={draft.unit} onChange={(event) => onChange({ unit: pick(units, event.target.value, "replicas") })}>
          {(Object.keys(units) as PeakDraft["unit"][]).map((each) => (
            <option key={each} value={each}>{t(units[each])}</option>
          ))}
        </Select>
        <Input label={t("scaling.peaks.amount")} inputMode="decimal" autoComplete="off" value={draft.amount} error={wrong ? t("scaling.peaks.wrong") : null} onChange={(event) => onChange({ amount: event.target.value })} />
      </div>
      <div>
        <Button size="small" kind="quiet" onClick={onRemove}>{t("scaling.peaks.remove")}</Button>
      </div>
    </fieldset>
  );
}
