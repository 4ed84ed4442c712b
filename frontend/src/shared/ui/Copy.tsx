import { useEffect, useState } from "react";
import { useI18n } from "../i18n";
import { Button } from "./Button";

async function copy(text: string): Promise<void> {
  // The type says it is always there; without a secure context it is not.
  const clipboard = (navigator as { clipboard?: Clipboard }).clipboard;
  if (clipboard) return clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "visually-hidden";
  document.body.append(field);
  field.select();
  document.execCommand("copy"); // eslint-disable-line @typescript-eslint/no-deprecated -- the only way on plain http
  field.remove();
}

export function CopyButton({ text, what, kind = "quiet" }: { text: string; what: string; kind?: "quiet" | "plain" | "primary" }) {
  const { t } = useI18n();
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = window.setTimeout(() => setDone(false), 2000);
    return () => window.clearTimeout(timer);
  }, [done]);
  return (
    <Button kind={kind} size="small" aria-label={t("common.copyNamed", { what })} onClick={() => void copy(text).then(() => setDone(true), () => setDone(false))}>
      <span role="status">{done ? t("common.copied") : t("common.copy")}</span>
    </Button>
  );
}

/** Text to take away, shown exactly as it is copied. */
export function CodeBlock({ code, label, wrap = false }: { code: string; label: string; wrap?: boolean }) {
  return (
    <div className="code">
      <div className="code-head">
        <span>{label}</span>
        <CopyButton text={code} what={label} />
      </div>
      {/* eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- it scrolls, so the keyboard must reach it */}
      <pre data-wrap={wrap} tabIndex={0} aria-label={label}>
        <code>{code}</code>
      </pre>
    </div>
  );
}
