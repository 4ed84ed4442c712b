import { Component, type ReactNode } from "react";
import { useI18n } from "@/shared/i18n";
import { Button } from "@/shared/ui/Button";
import { Notice } from "@/shared/ui/Notice";

/** Whatever breaks while drawing, also a part of the page that a new release has replaced, ends in a sentence. */
export class ErrorBoundary extends Component<{ children: ReactNode }, { broken: boolean }> {
  override state = { broken: false };

  static getDerivedStateFromError() {
    return { broken: true };
  }

  override render() {
    return this.state.broken ? <Broken /> : this.props.children;
  }
}

function Broken() {
  const { t } = useI18n();
  return (
    <main className="signin">
      <div className="signin-box">
        <h1>{t("error.title")}</h1>
        <Notice tone="danger" role="alert">{t("error.crash")}</Notice>
        <Button kind="primary" onClick={() => window.location.reload()}>{t("error.reload")}</Button>
      </div>
    </main>
  );
}
