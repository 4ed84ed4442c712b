import { describe, expect, it } from "vitest";
import { isFull, isTold } from "@/features/deployments/RolloutCard";
import type { Rollout } from "@/shared/api/types";

const base = { strategy: "canary", step: 0, steps: [5, 50], base: 1, status: "progressing" } as unknown as Rollout;

describe("a rollout", () => {
  it("takes everything once its steps are over", () => {
    expect(isFull(base)).toBe(false);
    expect(isFull({ ...base, step: 2 })).toBe(true);
    expect(isFull({ ...base, strategy: "rolling", steps: [] })).toBe(true);
    expect(isFull({ ...base, strategy: "shadow", steps: [] })).toBe(false);
    expect(isFull({ ...base, strategy: "shadow", steps: [], step: 1 })).toBe(true);
  });

  it("is told of while it is under way and when it went back", () => {
    expect(isTold(base)).toBe(true);
    expect(isTold({ ...base, status: "rolled_back" })).toBe(true);
    expect(isTold({ ...base, status: "completed" })).toBe(false);
    expect(isTold({ ...base, base: null })).toBe(false); // the first revision replaces nothing
    expect(isTold(null)).toBe(false);
  });
});
