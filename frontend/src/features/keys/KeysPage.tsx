import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import { serverNow } from "@/shared/api/client";
import type { ApiKey, IssuedKey } from "@/shared/api/types";
import { dateTime, relative } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { usePolling } from "@/shared/live/LiveProvider";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import type { IconName, Tone } from "@/shared/ui/Icon";
import { Empty, Page } from "@/shared/ui/Page";
import { Paged } from "@/shared/ui/Paged";
import { Badge } from "@/shared/ui/Status";
import { Name } from "@/shared/ui/Table";
import { CreatedKey } from "./CreatedKey";
import { CreateKeyDialog } from "./CreateKeyDialog";
import { RevokeDialog } from "./RevokeDialog";
import { Spread } from "./Spread";

export function useKeys() {
  const { slug } = useOrg();
  return useInfiniteQuery({
    queryKey: keys.apiKeys(slug),
    queryFn: ({ pageParam }) => api.keys(slug, pageParam),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    refetchInterval: usePolling(),
  });
}

export default function KeysPage() {
  const { t } = useI18n();
  const { org, can } = useOrg();
  const query = useKeys();
  const [creating, setCreating] = useState(false);
  const [created, setCreated] = useState<IssuedKey | null>(null);
  const [revoking, setRevoking] = useState<ApiKey | null>(null);
  const [changes, setChanges] = useState<Record<string, number>>({}); // key id → change that revoked it, to be followed
  const create = can("keys.create") ? <Button kind="primary" onClick={() => setCreating(true)}>{t("keys.create")}</Button> : null;
  return (
    <Page title={t("keys.title")} scope={org.name} lead={t("keys.lead")} actions={create}>
      {created ? <CreatedKey created={created} onStored={() => setCreated(null)} /> : null}
      <KeyTable query={query} changes={changes} onRevoke={setRevoking} />
      {creating ? (
        <CreateKeyDialog
          onClose={() => setCreating(false)}
          onCreated={(key) => {
            setCreating(false);
            setCreated(key);
          }}
        />
      ) : null}
      {revoking ? (
        <RevokeDialog
          apiKey={revoking}
          onClose={() => setRevoking(null)}
          onRevoked={(key) => {
            setRevoking(null);
            if (created?.id === key.id) setCreated(null);
            setChanges((now) => ({ ...now, [key.id]: key.change.id }));
          }}
        />
      ) : null}
    </Page>
  );
}

function KeyTable({ query, changes, onRevoke }: { query: ReturnType<typeof useKeys>; changes: Record<string, number>; onRevoke: (key: ApiKey) => void }) {
  const { t, locale } = useI18n();
  const now = serverNow();
  const moment = (at: string) => <time dateTime={at} title={dateTime(at, locale)}>{relative(at, now, locale)}</time>;
  return (
    <Paged
      query={query}
      caption={t("keys.title")}
      empty={<Empty text={t("keys.empty")} />}
      rowKey={(key) => key.id}
      columns={[
        { head: t("common.name"), cell: (key) => <Name>{key.name}</Name> },
        { head: t("keys.key"), cell: (key) => <code>bth_…{key.hint}</code> },
        { head: t("keys.owner"), cell: (key) => `${key.created_by.name || key.created_by.email} · ${t(`keys.kind.${key.kind}`)}` },
        { head: t("keys.scope"), cell: (key) => <Scope apiKey={key} /> },
        { head: t("keys.lastUsed"), cell: (key) => (key.last_used_at ? moment(key.last_used_at) : t("common.never")) },
        { head: t("keys.expires"), cell: (key) => (key.expires_at ? moment(key.expires_at) : t("common.never")) },
        { head: t("common.status"), cell: (key) => <KeyStatus apiKey={key} change={changes[key.id]} /> },
        {
          head: <span className="visually-hidden">{t("common.actions")}</span>,
          end: true,
          cell: (key) => (key.status === "revoked" ? null : <Button size="small" kind="danger" aria-label={t("keys.revokeNamed", { name: key.name })} onClick={() => onRevoke(key)}>{t("keys.revoke")}</Button>),
        },
      ]}
    />
  );
}

function Scope({ apiKey: { deployment_ids: only, limits, networks } }: { apiKey: ApiKey }) {
  const { t } = useI18n();
  const shown = [
    limits.rpm === null ? null : t("keys.limits.shortRpm", { n: limits.rpm }),
    limits.tpm === null ? null : t("keys.limits.shortTpm", { n: limits.tpm }),
    limits.concurrency === null ? null : t("keys.limits.shortConcurrency", { n: limits.concurrency }),
  ].filter((each) => each !== null);
  return (
    <>
      <div className="nowrap">{only === null ? t("keys.scope.all") : t("keys.scope.some", { n: only.length })}</div>
      {shown.length > 0 ? <div className="small muted">{shown.join(" · ")}</div> : null}
      {networks.length > 0 ? <div className="small muted" title={networks.join(", ")}>{t("keys.networks.short", { n: networks.length })}</div> : null}
    </>
  );
}

const LOOK: Record<ApiKey["status"], [Tone, IconName]> = { active: ["ok", "check"], expired: ["warn", "clock"], revoked: ["idle", "cross"] };

function KeyStatus({ apiKey, change }: { apiKey: ApiKey; change: number | undefined }) {
  const { t } = useI18n();
  const [tone, icon] = LOOK[apiKey.status];
  return (
    <span className="stack-s">
      <span><Badge tone={tone} icon={icon}>{t(`keys.status.${apiKey.status}`)}</Badge></span>
      {change === undefined ? null : <Spread change={change} done="keys.revokedOn" />}
    </span>
  );
}
