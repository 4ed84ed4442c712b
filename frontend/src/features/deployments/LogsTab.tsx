import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { api } from "@/shared/api/api";
import type { Deployment, LogLine } from "@/shared/api/types";
import { clock } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { Requires, useOrg } from "@/shared/session";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Select } from "@/shared/ui/Field";
import { Skeleton } from "@/shared/ui/Loaded";
import { Notice } from "@/shared/ui/Notice";
import { Empty } from "@/shared/ui/Page";
import { shortName } from "./Timeline";

const POLL_MS = 2000;
const KEPT = 2000; // lines in the page

export function LogsTab({ deployment }: { deployment: Deployment }) {
  return (
    <Requires action="logs.read">
      <Logs deployment={deployment} />
    </Requires>
  );
}

function Logs({ deployment }: { deployment: Deployment }) {
  const { t } = useI18n();
  const [replica, setReplica] = useState(deployment.replicas.at(0)?.name ?? "");
  const [follow, setFollow] = useState(true);
  const names = deployment.replicas.map((each) => each.name);
  const chosen = names.includes(replica) ? replica : (names[0] ?? "");
  return (
    <div className="stack">
      <Notice tone="info">{t("deployment.logs.note")}</Notice>
      <div className="row-wide">
        <div style={{ minWidth: 220 }}>
          <Select label={t("deployment.logs.replica")} value={chosen} onChange={(event) => setReplica(event.target.value)}>
            {names.map((name) => (
              <option key={name} value={name}>{shortName(name)}</option>
            ))}
          </Select>
        </div>
        <label className="check">
          <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.target.checked)} /> {t("deployment.logs.follow")}
        </label>
      </div>
      {chosen === "" ? <Empty text={t("deployment.noReplicas")} /> : <Lines key={chosen} deployment={deployment.name} replica={chosen} follow={follow} />}
    </div>
  );
}

/** Reads on from the last line that it has; never the whole log again. */
function Lines({ deployment, replica, follow }: { deployment: string; replica: string; follow: boolean }) {
  const { t, locale } = useI18n();
  const { slug } = useOrg();
  const box = useRef<HTMLDivElement>(null);
  const [lines, setLines] = useState<readonly LogLine[]>([]);
  const [after, setAfter] = useState<number | null>(null);
  const page = useQuery({
    queryKey: ["logs", slug, deployment, replica, after],
    queryFn: () => api.logs(slug, deployment, { replica, after }),
    refetchInterval: follow ? POLL_MS : false,
    gcTime: 0,
  });
  const got = page.data;
  useEffect(() => {
    if (!got || got.items.length === 0) return;
    setLines((now) => [...now, ...got.items.filter((line) => line.number > (now.at(-1)?.number ?? -1))].slice(-KEPT));
    setAfter(got.next_after);
  }, [got]);
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, follow]);
  if (lines.length === 0) {
    if (page.isError) return <ErrorNotice error={page.error} title={t("error.title")} onRetry={() => void page.refetch()} />;
    return page.data ? <Empty text={t("deployment.logs.empty")} /> : <Skeleton rows={4} />;
  }
  return (
    <>
      {page.isError ? <ErrorNotice error={page.error} title={t("error.title")} onRetry={() => void page.refetch()} /> : null}
      {/* eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- it scrolls, so the keyboard must reach it */}
      <div className="log" ref={box} role="log" aria-live="off" aria-label={t("deployment.logs.label")} tabIndex={0}>
        {lines.map((line) => (
          <div key={line.number} className="log-line" data-withheld={line.text === null}>
            <span>{clock(line.at, locale)}</span>
            <span>{line.source}</span>
            <span>{line.text ?? t("deployment.logs.withheld", { n: line.withheld ?? 0 })}</span>
          </div>
        ))}
      </div>
    </>
  );
}
