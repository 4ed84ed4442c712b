import { ApiError, toApiError } from "../api/client";
import { duration } from "../format/number";
import { useI18n } from "../i18n";
import { Button } from "./Button";
import { CopyButton } from "./Copy";
import { Notice } from "./Notice";

/** The sentence for a failure: the catalogue's by its code, else what the server says. */
export function useErrorText(): (error: unknown) => string {
  const { lookup, locale, t } = useI18n();
  return (raw) => {
    const error = toApiError(raw);
    const values: Record<string, string | number> = { wait: duration((error.retryAfter ?? 1) * 1000), status: error.status };
    for (const [name, value] of Object.entries(error.params)) {
      if (typeof value === "string" || typeof value === "number") values[name] = value;
    }
    const own = lookup(`error.${error.code}`, values);
    if (own !== null && !/\{\w+\}/.test(own)) return own;
    return locale === "en" ? error.message : t("error.serverSays", { message: error.message });
  };
}

/** What happened, what to do, and what to quote. `failed` says whether a page part or an action failed. */
export function ErrorNotice({ error, title, onRetry }: { error: unknown; title?: string; onRetry?: () => void }) {
  const { t } = useI18n();
  const text = useErrorText();
  const known = error instanceof ApiError ? error : toApiError(error);
  return (
    <Notice tone="danger" title={title ?? t("error.action")} role="alert">
      <p>{text(known)}</p>
      <p className="small muted">
        {t("common.code")}: <code>{known.code}</code>
        {known.requestId ? (
          <>
            {" · "}
            {t("common.requestId")}: <code>{known.requestId}</code> <CopyButton text={known.requestId} what={t("common.requestId")} />
          </>
        ) : null}
      </p>
      {onRetry ? (
        <p>
          <Button size="small" onClick={onRetry}>{t("common.retry")}</Button>
        </p>
      ) : null}
    </Notice>
  );
}
