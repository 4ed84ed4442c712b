import { describe, expect, it } from "vitest";
import { parseStatus, pauseAfter } from "@/shared/live/watch";

describe("a stream about one thing", () => {
  it("is read as it is sent, and what cannot be read is left out", () => {
    expect(parseStatus('{"state":"ready","starts":[]}')).toEqual({ state: "ready", starts: [] });
    for (const text of ["", "{", "null", "[]", "3"]) expect(parseStatus(text)).toBeNull();
  });

  it("is tried again after longer and longer pauses", () => {
    expect([1, 2, 3, 4, 9].map(pauseAfter)).toEqual([2_000, 4_000, 8_000, 16_000, 30_000]);
  });
});
