export type Theme = "system" | "light" | "dark";
const STORED = "berth.theme";

export function readTheme(): Theme {
  const { theme } = document.documentElement.dataset;
  return theme === "light" || theme === "dark" ? theme : "system";
}

export function setTheme(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  try {
    if (theme === "system") localStorage.removeItem(STORED);
    else localStorage.setItem(STORED, theme);
  } catch {
    // Storage can be forbidden; the choice then holds until the page is closed.
  }
}
