import { LOCALE_NAMES, LOCALES, useI18n } from "@/shared/i18n";
import { Segments } from "@/shared/ui/Field";

export function LanguageSwitch() {
  const { locale, setLocale, t } = useI18n();
  return (
    <div>
      <Segments label={t("app.language")} value={locale} onChange={setLocale} options={LOCALES.map((value) => ({ value, label: LOCALE_NAMES[value] }))} />
    </div>
  );
}
