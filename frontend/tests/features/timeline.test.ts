import { describe, expect, it } from "vitest";
import type { Replica } from "@/shared/api/types";
import { startupTime, timeline } from "@/features/deployments/timeline";
import { snippet } from "@/features/deployments/snippets";

const T0 = Date.parse("2026-11-30T18:00:00Z");
const instant = (seconds: number) => new Date(T0 + seconds * 1000).toISOString();

function replica(change: Partial<Replica>): Replica {
  return { id: "1", name: "d-1-0-1", ordinal: 0, revision: 1, phase: "loading", phases: [], started_at: instant(0), ready_at: null, ended_at: null, reason: "", message: "", ...change };
}

const phase = (name: string, from: number, to: number | null, done: number | null = null) => ({ phase: name, started_at: instant(from), ended_at: to === null ? null : instant(to), done, total: done });

describe("the timeline of a start", () => {
  it("shows what is done, what runs, and what is to come, with what is usual", () => {
    const rows = timeline(replica({ phases: [phase("fetching", 0, 1, 100), phase("verifying", 1, 3), phase("loading", 3, null)] }), { fetching: 1, loading: 2 }, T0 + 9000);
    expect(rows.map((row) => [row.step, row.state, row.elapsed, row.usual, row.longer])).toEqual([
      ["fetching", "done", 1000, 1000, false],
      ["verifying", "done", 2000, null, false],
      ["loading", "running", 6000, 2000, true],
      ["warming", "waiting", null, null, false],
    ]);
  });

  it("does not wait for a step that was not needed", () => {
    const rows = timeline(replica({ phases: [phase("verifying", 0, null)] }), { fetching: 0 }, T0 + 1000);
    expect(rows.map((row) => row.state)).toEqual(["skipped", "running", "waiting", "waiting"]);
  });

  it("stops its clock at the end and names the step that failed", () => {
    const dead = replica({ phase: "failed", ended_at: instant(5), phases: [phase("fetching", 0, 1), phase("verifying", 1, null)] });
    expect(timeline(dead, {}, T0 + 60_000).map((row) => [row.state, row.elapsed])).toEqual([["done", 1000], ["failed", 4000], ["waiting", null], ["waiting", null]]);
    expect(startupTime(dead, T0 + 60_000)).toBe(5000);
  });

  it("keeps the steps of a replica that failed after it was ready", () => {
    const late = replica({ phase: "failed", ready_at: instant(4), ended_at: instant(50), phases: [phase("fetching", 0, 1), phase("warming", 1, 4)] });
    expect(timeline(late, {}, T0 + 60_000).map((row) => row.state)).toEqual(["done", "skipped", "skipped", "done"]);
    expect(startupTime(late, T0 + 60_000)).toBe(4000);
  });
});

describe("call snippets", () => {
  it("name base URL and model and carry no secret", () => {
    for (const language of ["curl", "python", "javascript"] as const) {
      for (const chat of [true, false]) {
        const text = snippet(language, "http://127.0.0.1:8081/v1", "my-org/bot", chat);
        expect(text).toContain("http://127.0.0.1:8081/v1");
        expect(text).toContain("my-org/bot");
        expect(text).toContain("BERTH_API_KEY");
        expect(text).not.toContain("bth_sk_");
      }
    }
  });

  it("give curl a body that is JSON", () => {
    const body = /-d '(.*)'/.exec(snippet("curl", "http://x/v1", "my-org/bot", true))?.[1] ?? "";
    expect(JSON.parse(body)).toMatchObject({ model: "my-org/bot", stream: true });
  });
});
