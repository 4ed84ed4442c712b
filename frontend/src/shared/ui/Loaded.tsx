import { type ReactNode, useEffect, useState } from "react";
import { useI18n } from "../i18n";
import { ErrorNotice } from "./ErrorNotice";

/** What a query and an infinite query have in common. */
interface Asked<T> {
  data: T | undefined;
  error: unknown;
  isError: boolean;
  isRefetchError: boolean;
  refetch: () => unknown;
}

/** The states of every part of a page: a skeleton, an error with Retry, or the content. Old content outlives a failed refresh. */
export function Loaded<T>({ query, rows = 3, children }: { query: Asked<T>; rows?: number; children: (data: T) => ReactNode }) {
  const { t } = useI18n();
  const retry = () => void query.refetch();
  if (query.data !== undefined) {
    return (
      <>
        {query.isRefetchError ? <ErrorNotice error={query.error} title={t("error.title")} onRetry={retry} /> : null}
        {children(query.data)}
      </>
    );
  }
  if (query.isError) return <ErrorNotice error={query.error} title={t("error.title")} onRetry={retry} />;
  return <Skeleton rows={rows} />;
}

const SLOW_MS = 3000;

export function Skeleton({ rows = 3 }: { rows?: number }) {
  const { t } = useI18n();
  const [slow, setSlow] = useState(false);
  useEffect(() => {
    const timer = window.setTimeout(() => setSlow(true), SLOW_MS);
    return () => window.clearTimeout(timer);
  }, []);
  return (
    <div className="stack-s" role="status">
      <span className={slow ? "muted" : "visually-hidden"}>{slow ? t("common.stillLoading") : t("common.loading")}</span>
      {Array.from({ length: rows }, (_, row) => (
        <span key={row} className="skeleton" style={{ height: 40 }} />
      ))}
    </div>
  );
}
