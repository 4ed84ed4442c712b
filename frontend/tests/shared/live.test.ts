import { describe, expect, it } from "vitest";
import { parseLive } from "@/shared/live/live";

describe("live events", () => {
  it("are read as they are sent", () => {
    expect(parseLive('{"id":"1-0","topic":"deployments","resource":"bot","version":3,"at":"2026-11-30T18:00:00Z","data":{}}')).toEqual({ id: "1-0", topic: "deployments", resource: "bot" });
  });

  it("that cannot be read are left out", () => {
    for (const text of ["", "{", "null", "[]", '{"topic":1}']) expect(parseLive(text)).toBeNull();
  });
});
