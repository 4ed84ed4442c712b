import { useI18n } from "@/shared/i18n";
import { ButtonLink } from "@/shared/ui/Button";
import { Page } from "@/shared/ui/Page";

export function NotFound() {
  const { t } = useI18n();
  return (
    <Page title={t("app.notFound.title")} lead={t("app.notFound.text")}>
      <div>
        <ButtonLink href="/">{t("app.toOverview")}</ButtonLink>
      </div>
    </Page>
  );
}

export function NoOrganisation() {
  const { t } = useI18n();
  return <Page title={t("app.noOrg.title")} lead={t("app.noOrg.text")}>{null}</Page>;
}
