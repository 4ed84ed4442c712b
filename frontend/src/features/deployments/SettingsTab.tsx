import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useLocation } from "wouter";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Deployment } from "@/shared/api/types";
import { useI18n } from "@/shared/i18n";
import { Requires, useOrg } from "@/shared/session";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { Dialog } from "@/shared/ui/Dialog";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Input } from "@/shared/ui/Field";
import { Card } from "@/shared/ui/Page";
import { useToast } from "@/shared/ui/Toasts";
import { LIMITS, wholeNumber } from "@/features/deploy/form";
import { ScalingSettings } from "./ScalingSettings";

export function SettingsTab({ deployment }: { deployment: Deployment }) {
  const { can } = useOrg();
  return (
    <Requires action="deployments.write">
      <div className="grid-2">
        {deployment.beside === null ? (
          <>
            <ChangeNeeds deployment={deployment} />
            <Scale deployment={deployment} />
            <Bounds deployment={deployment} />
            <ScalingSettings deployment={deployment} />
          </>
        ) : (
          <FollowsBase base={deployment.beside} />
        )}
        {can("deployments.delete") ? <Delete deployment={deployment} /> : null}
      </div>
    </Requires>
  );
}

/** An adapter runs on its base's replicas: needs, number, bounds, sleep and peaks are the base's to say, and refused here. */
function FollowsBase({ base }: { base: string }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  return (
    <Card title={t("deployment.followsBase")}>
      <div className="stack">
        <p>{t("deployment.followsBase.text", { base })}</p>
        <div>
          <ButtonLink href={`/o/${slug}/deployments/${encodeURIComponent(base)}/settings`}>{t("deployment.followsBase.open", { base })}</ButtonLink>
        </div>
      </div>
    </Card>
  );
}

function ChangeNeeds({ deployment }: { deployment: Deployment }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  return (
    <Card title={t("deployment.needs")}>
      <div className="stack">
        <p>{t("deployment.needs.text")}</p>
        <div>
          <ButtonLink href={`/o/${slug}/deploy?change=${encodeURIComponent(deployment.name)}`}>{t("deployment.needs.change")}</ButtonLink>
        </div>
      </div>
    </Card>
  );
}

function Scale({ deployment }: { deployment: Deployment }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const client = useQueryClient();
  const toast = useToast();
  const [text, setText] = useState(String(deployment.revision.replicas));
  const value = wholeNumber(text);
  const { min, max } = LIMITS.replicas;
  const wrong = value === null || value < min || value > max;
  const save = useMutation({
    mutationFn: (replicas: number) => api.updateDeployment(slug, deployment.name, { replicas }),
    onSuccess: (fresh) => {
      client.setQueryData(keys.deployment(slug, deployment.name), fresh);
      toast(t("deployment.scale.saved", { number: String(fresh.revision.number) }));
    },
    onSettled: () => client.invalidateQueries({ queryKey: keys.deployments(slug) }),
  });
  return (
    <Card title={t("deployment.scale")}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (!wrong) save.mutate(value);
        }}
      >
        <Input label={t("deploy.replicas")} help={t("deployment.scale.text")} inputMode="numeric" error={wrong ? t("deploy.invalidNumber", { min, max }) : null} value={text} onChange={(event) => setText(event.target.value)} />
        {save.isError ? <ErrorNotice error={save.error} /> : null}
        <div>
          <Button type="submit" busy={save.isPending} blocked={wrong ? t("deploy.fixFields") : null}>{t("deployment.scale.save")}</Button>
        </div>
      </form>
    </Card>
  );
}

/** Between which numbers of replicas scaling may choose. Empty: the revision's own number, so nothing is scaled. */
function Bounds({ deployment }: { deployment: Deployment }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const client = useQueryClient();
  const toast = useToast();
  const [least, setLeast] = useState(deployment.min_replicas === null ? "" : String(deployment.min_replicas));
  const [most, setMost] = useState(deployment.max_replicas === null ? "" : String(deployment.max_replicas));
  const read = (text: string) => (text.trim() === "" ? null : wholeNumber(text));
  const bad = (text: string, from: number) => {
    const value = wholeNumber(text);
    return text.trim() !== "" && (value === null || value < from || value > LIMITS.replicas.max);
  };
  const wrongLeast = bad(least, 0);
  const wrongMost = bad(most, 1);
  const wrong = wrongLeast || wrongMost;
  const save = useMutation({
    mutationFn: () => api.updateDeployment(slug, deployment.name, { min_replicas: read(least), max_replicas: read(most) }),
    onSuccess: (fresh) => {
      client.setQueryData(keys.deployment(slug, deployment.name), fresh);
      toast(t("deployment.bounds.saved"));
    },
    onSettled: () => client.invalidateQueries({ queryKey: keys.deployments(slug) }),
  });
  return (
    <Card title={t("deployment.bounds")}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (!wrong) save.mutate();
        }}
      >
        <p>{t("deployment.bounds.text")}</p>
        <Input label={t("deployment.bounds.least")} inputMode="numeric" error={wrongLeast ? t("deploy.invalidNumber", { min: 0, max: LIMITS.replicas.max }) : null} value={least} onChange={(event) => setLeast(event.target.value)} />
        <Input label={t("deployment.bounds.most")} inputMode="numeric" error={wrongMost ? t("deploy.invalidNumber", { min: 1, max: LIMITS.replicas.max }) : null} value={most} onChange={(event) => setMost(event.target.value)} />
        {save.isError ? <ErrorNotice error={save.error} /> : null}
        <div>
          <Button type="submit" busy={save.isPending} blocked={wrong ? t("deploy.fixFields") : null}>{t("deployment.bounds.save")}</Button>
        </div>
      </form>
    </Card>
  );
}

function Delete({ deployment }: { deployment: Deployment }) {
  const { t } = useI18n();
  const [asking, setAsking] = useState(false);
  return (
    <Card title={t("deployment.delete")}>
      <div className="stack">
        <p>{t("deployment.delete.text", { id: deployment.model_id })}</p>
        <div>
          <Button kind="danger" onClick={() => setAsking(true)}>{t("deployment.delete")}</Button>
        </div>
      </div>
      {asking ? <ConfirmDelete deployment={deployment} onClose={() => setAsking(false)} /> : null}
    </Card>
  );
}

function ConfirmDelete({ deployment, onClose }: { deployment: Deployment; onClose: () => void }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const [, go] = useLocation();
  const client = useQueryClient();
  const toast = useToast();
  const [typed, setTyped] = useState("");
  const remove = useMutation({
    mutationFn: () => api.deleteDeployment(slug, deployment.name),
    onSuccess: () => {
      toast(t("deployment.deleted", { name: deployment.name }));
      go(`/o/${slug}/deployments`);
      void client.invalidateQueries({ queryKey: keys.deployments(slug), exact: true });
    },
  });
  return (
    <Dialog title={t("deployment.delete")} onClose={onClose}>
      <p>{t("deployment.delete.text", { id: deployment.model_id })}</p>
      <Input label={t("deployment.delete.confirm", { name: deployment.name })} autoComplete="off" spellCheck={false} value={typed} onChange={(event) => setTyped(event.target.value)} />
      {remove.isError ? <ErrorNotice error={remove.error} /> : null}
      <div className="dialog-actions">
        <Button onClick={onClose}>{t("common.cancel")}</Button>
        <Button kind="danger" busy={remove.isPending} blocked={typed === deployment.name ? null : t("deployment.delete.confirm", { name: deployment.name })} onClick={() => remove.mutate()}>
          {remove.isPending ? t("deployment.deleting") : t("deployment.delete")}
        </Button>
      </div>
    </Dialog>
  );
}
