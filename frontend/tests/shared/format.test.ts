import { describe, expect, it } from "vitest";
import { bytes, compact, count, duration, rough } from "@/shared/format/number";
import { addDays, dayIn, relative, startOfDay } from "@/shared/format/time";
import { interval } from "@/features/usage/ranges";

describe("numbers", () => {
  it("never shows unknown as zero", () => {
    expect([count(null, "en"), bytes(undefined, "en"), duration(null), rough(null, "zh"), compact(null, "zh")]).toEqual(["–", "–", "–", "–", "–"]);
    expect(count(0, "en")).toBe("0");
  });

  it("writes durations with their unit", () => {
    expect([131, 4200, 59_949, 59_960, 252_000, 7_500_000, 273_600_000].map(duration)).toEqual(["131 ms", "4.2 s", "59.9 s", "1 min 0 s", "4 min 12 s", "2 h 5 min", "3 d 4 h"]);
  });

  it("writes sizes in binary units", () => {
    expect([0, 1023, 1536, 97_517_568, 24_051_816_858].map((size) => bytes(size, "en"))).toEqual(["0 B", "1,023 B", "1.5 KiB", "93.0 MiB", "22.4 GiB"]);
  });

  it("shortens large numbers as each language does", () => {
    expect(compact(12_345_678, "en")).toBe("12.3M");
    expect(compact(12_345_678, "zh")).toBe("1234.6万");
  });

  it("says how long ago", () => {
    const now = Date.parse("2026-11-30T12:00:00Z");
    expect(relative("2026-11-30T11:58:00Z", now, "en")).toBe("2 min ago");
    expect(relative("2026-11-30T11:58:00Z", now, "zh")).toBe("2分钟前");
  });
});

describe("days in the organisation's zone", () => {
  it("belong to the zone, not to UTC", () => {
    const late = Date.parse("2026-11-30T18:00:00Z");
    expect(dayIn(late, "Asia/Shanghai")).toBe("2026-12-01");
    expect(dayIn(late, "UTC")).toBe("2026-11-30");
    expect(startOfDay("2026-12-01", "Asia/Shanghai").toISOString()).toBe("2026-11-30T16:00:00.000Z");
  });

  it("begin at the right instant on the days when clocks change", () => {
    expect(startOfDay("2026-03-29", "Europe/Berlin").toISOString()).toBe("2026-03-28T23:00:00.000Z");
    expect(startOfDay("2026-03-30", "Europe/Berlin").toISOString()).toBe("2026-03-29T22:00:00.000Z");
    expect(startOfDay("2026-10-26", "Europe/Berlin").toISOString()).toBe("2026-10-25T23:00:00.000Z");
    expect(startOfDay("2026-03-08", "America/New_York").toISOString()).toBe("2026-03-08T05:00:00.000Z");
  });

  it("make whole months", () => {
    const now = Date.parse("2026-11-30T18:00:00Z"); // already December in Shanghai
    expect(interval("month", now, "Asia/Shanghai")).toEqual({ from: "2026-11-30T16:00:00.000Z", to: "2026-12-31T16:00:00.000Z" });
    expect(interval("lastMonth", now, "Asia/Shanghai")).toEqual({ from: "2026-10-31T16:00:00.000Z", to: "2026-11-30T16:00:00.000Z" });
    expect(interval("7d", now, "UTC")).toEqual({ from: "2026-11-24T00:00:00.000Z", to: "2026-12-01T00:00:00.000Z" });
    expect(addDays("2026-02-28", 1)).toBe("2026-03-01");
  });
});
