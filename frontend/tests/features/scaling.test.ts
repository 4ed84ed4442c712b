import { describe, expect, it } from "vitest";
import { check, EMPTY, toChange } from "@/features/deploy/form";
import { ROLLING, toRollout, wrongIn } from "@/features/deploy/takeover";
import { draftsOf, localInput, NEW_PEAK, RANGES, readNumber, toPeak } from "@/features/deployments/scaling";

const kept = { needs: {}, pins: {} };

describe("how a change takes over", () => {
  it("is one replica after the other unless something else was chosen", () => {
    expect(toRollout(ROLLING)).toEqual({});
    expect(toChange(EMPTY, kept)).not.toHaveProperty("rollout");
  });

  it("is sent as it was chosen", () => {
    expect(toRollout({ ...ROLLING, strategy: "canary", steps: "5，20 %, 60", hold: "30", reason: " faster " })).toEqual({ rollout: { strategy: "canary", steps: [5, 20, 60], hold_seconds: 30 }, reason: "faster" });
    expect(toRollout({ ...ROLLING, strategy: "shadow", percent: "25", automatic: false })).toEqual({ rollout: { strategy: "shadow", shadow_percent: 25, automatic: false } });
    expect(toChange({ ...EMPTY, takeover: { ...ROLLING, automatic: false } }, kept).rollout).toEqual({ automatic: false });
  });

  it("says which field means nothing", () => {
    for (const steps of ["", "50, 20", "5, 5", "0", "101", "five"]) expect(wrongIn({ ...ROLLING, strategy: "canary", steps })).toBe("steps");
    expect(wrongIn({ ...ROLLING, strategy: "shadow", percent: "0" })).toBe("percent");
    expect(wrongIn({ ...ROLLING, hold: "soon" })).toBe("hold");
    expect(check({ ...EMPTY, takeover: { ...ROLLING, hold: "-1" } })).toEqual({ takeover: "hold" });
  });
});

describe("declared peaks", () => {
  it("survive being read and written", () => {
    const peak = { start: "2026-12-01T08:00:00.000Z", end: "2026-12-01T10:30:00.000Z", every: "day" as const, replicas: 4, requests_per_second: null };
    const [draft] = draftsOf({ peaks: [peak] });
    expect(draft && toPeak(draft)).toEqual({ start: peak.start, end: peak.end, every: "day", replicas: 4 });
    const rate = { ...peak, replicas: null, requests_per_second: 2.5 };
    const [other] = draftsOf({ peaks: [rate] });
    expect(other && toPeak(other)).toMatchObject({ requests_per_second: 2.5 });
    expect(localInput(peak.start)).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d$/);
  });

  it("that mean nothing are not sent", () => {
    const good = { ...NEW_PEAK, start: "2026-12-01T08:00", end: "2026-12-01T09:00", amount: "2" };
    expect(toPeak(good)).not.toBeNull();
    for (const change of [{ start: "" }, { end: "2026-12-01T08:00" }, { amount: "" }, { amount: "1.5" }, { amount: "17" }]) expect(toPeak({ ...good, ...change })).toBeNull();
  });

  it("numbers are read within their range", () => {
    expect(readNumber(" 1.5 ", RANGES.headRoom)).toBe(1.5);
    for (const text of ["", "0.9", "6", "1e1", "-1", "x"]) expect(readNumber(text, RANGES.headRoom)).toBeNull();
  });
});
