import { createContext, type ReactNode, useCallback, useContext, useEffect, useMemo, useState } from "react";
import type { Locale } from "../format/number";
import { en } from "./en";
import { zh } from "./zh";

export type Key = keyof typeof en;
export type Message = string | { one: string; other: string };
type Text<K extends Key> = (typeof en)[K] extends infer M ? (M extends string ? M : M extends { other: infer O } ? O : never) : never;

/** The {names} in an English text. */
type Names<S> = S extends `${string}{${infer Name}}${infer Rest}` ? Name | Names<Rest> : never;
type Values<K extends Key> = Record<Names<Text<K>>, string | number>;
type Rest<K extends Key> = [Names<Text<K>>] extends [never] ? [] : [values: Values<K>];

/** The keys of texts without parameters. */
export type PlainKey = { [K in Key]: [Names<Text<K>>] extends [never] ? K : never }[Key];

export type Translate = <K extends Key>(key: K, ...rest: Rest<K>) => string;

const CATALOGUES: Record<Locale, Record<Key, Message>> = { en, zh };
export const LOCALES: readonly Locale[] = ["en", "zh"];
export const LOCALE_NAMES: Record<Locale, string> = { en: "English", zh: "简体中文" };

export function isKey(text: string): text is Key {
  return Object.hasOwn(en, text);
}

/** Fills a text in. `n` chooses between one and other. */
export function format(locale: Locale, key: Key, values: Record<string, string | number> = {}): string {
  const message = CATALOGUES[locale][key];
  const text = typeof message === "string" ? message : message[plural(locale, values["n"])];
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => {
    const value = values[name];
    if (value === undefined) return whole;
    return typeof value === "number" ? new Intl.NumberFormat(locale === "en" ? "en-GB" : "zh-CN").format(value) : value;
  });
}

function plural(locale: Locale, n: string | number | undefined): "one" | "other" {
  return new Intl.PluralRules(locale).select(Number(n ?? 0)) === "one" ? "one" : "other";
}

interface I18n {
  locale: Locale;
  setLocale: (locale: Locale) => void;
  t: Translate;
  /** For codes that come from the API: the catalogue's text, or null when it has none. */
  lookup: (key: string, values?: Record<string, string | number>) => string | null;
}

const Context = createContext<I18n | null>(null);
const STORED = "berth.language";

function initial(): Locale {
  return document.documentElement.lang.startsWith("zh") ? "zh" : "en"; // assets/theme.js set it before the first paint
}

export function I18nProvider({ children }: { children: ReactNode }) {
  const [locale, setState] = useState<Locale>(initial);
  useEffect(() => {
    document.documentElement.lang = locale === "zh" ? "zh-Hans" : "en";
  }, [locale]);
  const setLocale = useCallback((next: Locale) => {
    setState(next);
    try {
      localStorage.setItem(STORED, next);
    } catch {
      // Storage can be forbidden; the choice then holds until the page is closed.
    }
  }, []);
  const value = useMemo<I18n>(
    () => ({
      locale,
      setLocale,
      t: (key, ...rest) => format(locale, key, rest[0]),
      lookup: (key, values) => (isKey(key) ? format(locale, key, values) : null),
    }),
    [locale, setLocale],
  );
  return <Context.Provider value={value}>{children}</Context.Provider>;
}

export function useI18n(): I18n {
  const value = useContext(Context);
  if (value === null) throw new Error("useI18n needs an I18nProvider");
  return value;
}

/** Whether the reader once chose a language in this browser; then it wins over the account's. */
export function hasChosenLocale(): boolean {
  try {
    return localStorage.getItem(STORED) !== null;
  } catch {
    return false;
  }
}
