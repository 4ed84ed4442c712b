import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";

const css = readFileSync(new URL("../../src/app/tokens.css", import.meta.url), "utf8");
const tokens = new Map([...css.matchAll(/--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)/g)].map(([, name, light, dark]) => [name, { light, dark }]));

type Theme = "light" | "dark";

function luminance(hex: string): number {
  const [r = 0, g = 0, b = 0] = [1, 3, 5].map((at) => {
    const channel = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
    return channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one: string, other: string, theme: Theme): number {
  const colour = (name: string) => {
    const value = tokens.get(name)?.[theme];
    if (value === undefined) throw new Error(`no token ${name}`);
    return luminance(value);
  };
  const [low = 0, high = 0] = [colour(one), colour(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

const SURFACES = ["bg", "surface", "raised", "sunken"];
const TONES = ["ok", "warn", "danger", "info", "idle"];

describe.each(["light", "dark"] as const)("%s theme", (theme) => {
  it("has readable text on every surface", () => {
    for (const text of ["text", "text-2", "text-3", "accent", ...TONES]) {
      for (const surface of SURFACES) expect(contrast(text, surface, theme), `${text} on ${surface}`).toBeGreaterThanOrEqual(4.5);
    }
  });

  it("has readable text on every tint", () => {
    for (const tone of TONES) {
      expect(contrast(tone, `${tone}-tint`, theme), tone).toBeGreaterThanOrEqual(4.8);
      expect(contrast("text", `${tone}-tint`, theme), `text on ${tone}`).toBeGreaterThanOrEqual(4.8);
      expect(contrast("text-2", `${tone}-tint`, theme), `text-2 on ${tone}`).toBeGreaterThanOrEqual(4.5);
    }
    expect(contrast("on-accent", "accent", theme)).toBeGreaterThanOrEqual(4.8);
    expect(contrast("on-accent", "accent-hover", theme)).toBeGreaterThanOrEqual(4.8);
  });

  it("has controls and series that stand out", () => {
    for (const surface of ["bg", "surface", "sunken"]) expect(contrast("control-border", surface, theme), surface).toBeGreaterThanOrEqual(3.2);
    for (const series of ["series-1", "series-2", "series-3", "series-4"]) expect(contrast(series, "surface", theme), series).toBeGreaterThanOrEqual(5);
  });
});
