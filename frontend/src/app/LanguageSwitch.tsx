import type { Locale } from "@/shared/format/number";
import { LOCALE_NAMES, LOCALES, useI18n } from "@/shared/i18n";
import { Segments } from "@/shared/ui/Field";

/** `onChosen` is told what was pressed, also when it was in force already. */
export function LanguageSwitch({ onChosen }: { onChosen?: (locale: Locale) => void }) {
  const { locale, setLocale, t } = useI18n();
  const choose = (next: Locale) => {
    setLocale(next);
    onChosen?.(next);
  };
  return (
    <div>
      <Segments label={t("app.language")} value={locale} onChange={choose} options={LOCALES.map((value) => ({ value, label: LOCALE_NAMES[value] }))} />
    </div>
  );
}
