import { useI18n } from "@/shared/i18n";

/** Why a deployment or replica is as it is: the server's sentence has the numbers; other languages go by its code. */
export function useCause(): (reason: string, message: string) => string {
  const { lookup, locale } = useI18n();
  return (reason, message) => {
    if (locale === "en" && message !== "") return message;
    return lookup(`cause.${reason}`) ?? (message || reason);
  };
}
