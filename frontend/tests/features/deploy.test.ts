import { describe, expect, it } from "vitest";
import { PEOPLE, toDemand, wrongFields } from "@/features/deploy/anywhere";
import { check, contextChoices, EMPTY, fromChange, fromRevision, toChange, toPlanRequest, toRequest } from "@/features/deploy/form";
import { ROLLING } from "@/features/deploy/takeover";
import { paramText } from "@/features/deploy/planText";
import { attemptOf, staleOf } from "@/features/deploy/stale";
import { ApiError } from "@/shared/api/client";

describe("the deploy form", () => {
  it("sends only what was asked", () => {
    expect(toRequest({ ...EMPTY, model: "smol" })).toEqual({ model: "smol", needs: { concurrency: 4 }, replicas: 1 });
    expect(toRequest({ ...EMPTY, model: "smol", version: "2", name: "bot", context: "4096", concurrency: "", quality: "high", speed: "20", price: " 0.50 ", artefact: "id1", slots: "8", replicas: "2" })).toEqual({
      model: "smol",
      version: 2,
      name: "bot",
      needs: { context_length: 4096, quality: "high", tokens_per_second: 20, max_price_per_hour: "0.50" },
      pins: { artefact_id: "id1", slots: 8 },
      replicas: 2,
    });
  });

  it("asks for replicas of its own only where somebody wants them", () => {
    expect(toRequest({ ...EMPTY, model: "voice" })).not.toHaveProperty("beside");
    expect(toPlanRequest({ ...EMPTY, model: "voice", alone: true })).toMatchObject({ model: "voice", beside: "" });
  });

  it("marks fields that mean nothing", () => {
    expect(check({ ...EMPTY, model: "m" })).toEqual({});
    expect(check({ ...EMPTY, concurrency: "0", speed: "fast", replicas: "17", slots: "1.5", price: "1e9", name: "Upper Case" })).toEqual({ concurrency: "number", speed: "number", replicas: "number", slots: "number", price: "price", name: "name" });
  });

  it("offers contexts up to what the model was trained for", () => {
    expect(contextChoices(8192)).toEqual([1024, 2048, 4096, 8192]);
    expect(contextChoices(5000)).toEqual([1024, 2048, 4096, 5000]);
    expect(contextChoices(512)).toEqual([512]);
    expect(contextChoices(2048, 1280)).toEqual([1024, 1280, 2048]);
  });

  it("takes the planner's suggestions over", () => {
    expect(fromChange({ field: "context_length", value: 1280 })).toEqual({ context: "1280" });
    expect(fromChange({ field: "tokens_per_second", value: 12.7 })).toEqual({ speed: "12" });
    expect(fromChange({ field: "ttft_ms", value: 401.2 })).toEqual({ first: "402" });
    expect(fromChange({ field: "max_price_per_hour", value: null })).toEqual({ price: "" });
    expect(fromChange({ field: "quality", value: "good" })).toEqual({ quality: "good" });
    expect(fromChange({ field: "tier", value: null })).toBeNull();
    expect(fromChange({ needed: 1 })).toBeNull();
  });

  it("writes the planner's numbers as people read them", () => {
    expect(paramText("memory_short", "short", 5_905_580_032, "en", "USD")).toBe("5.5 GiB");
    expect(paramText("price_too_high", "price", "2.42", "en", "USD")).toBe("US$2.42");
    expect(paramText("shorter_context", "value", 4096, "en", "USD")).toBe("4,096");
    expect(paramText("x", "y", null, "en", "USD")).toBe("–");
  });
});

describe("planning and changing", () => {
  it("plans on while only the name is wrong, and not while a need is", () => {
    expect(toPlanRequest({ ...EMPTY, model: "smol", name: "Bad Name" })).toEqual({ model: "smol", needs: { concurrency: 4 }, replicas: 1 });
    expect(toPlanRequest({ ...EMPTY, model: "smol", concurrency: "0" })).toBeNull();
  });

  const revision = {
    needs: { quality: "good", licences: ["Apache-2.0"], concurrency: 8, context_length: 4096, tokens_per_second: 12.5, max_price_per_hour: null },
    pins: { artefact_id: "a1", engine: "llamacpp", tier: null, context_length: null, slots: 8 },
    replicas: 2,
  };
  const deployment = { model: "smol", version: 3, name: "bot", revision } as unknown as Parameters<typeof fromRevision>[0];

  it("fills the form with what a deployment has", () => {
    expect(fromRevision(deployment).draft).toEqual({ model: "smol", version: "3", name: "bot", context: "4096", concurrency: "8", quality: "good", speed: "12", first: "", price: "", replicas: "2", artefact: "a1", slots: "8", takeover: ROLLING, alone: false });
  });

  it("sends all of it back, also what the form does not show", () => {
    const { draft, kept } = fromRevision(deployment);
    const body = { needs: { licences: ["Apache-2.0"], context_length: 8192, concurrency: 8, quality: "good", tokens_per_second: 12 }, pins: { engine: "llamacpp", slots: 8 }, replicas: 2, version: 3 };
    expect(toChange({ ...draft, context: "8192", artefact: "" }, kept)).toEqual(body);
    expect(toPlanRequest({ ...draft, context: "8192", artefact: "" }, kept)).toEqual({ model: "smol", ...body });
  });
});

describe("a plan that has changed", () => {
  const stale = (params: Record<string, unknown>) => new ApiError("plan.stale", "changed", 409, params, "plan_id");

  it("shows what changed, and no ids where there is a name", () => {
    const price = { field: "price_per_hour", before: "2.42", after: "2.70" };
    expect(staleOf(stale({ differences: [price, { field: "artefact_id", before: "a", after: "b" }], expired: false, currency: "USD" }))).toEqual({ differences: [price], expired: false, currency: "USD" });
    expect(staleOf(stale({ differences: [], expired: true, currency: "USD" }))).toEqual({ differences: [], expired: true, currency: "USD" });
    expect(staleOf(stale({ differences: [{ field: "artefact_id", before: "a", after: "b" }] }))?.differences).toHaveLength(1);
    expect(staleOf(stale({ differences: ["?", null] }))?.differences).toEqual([]);
    expect(staleOf(new ApiError("name_taken", "taken", 409))).toBeNull();
    expect(staleOf(null)).toBeNull();
  });

  it("sends the same again after a lost answer, though the plan was made anew meanwhile", () => {
    const request = { model: "smol", replicas: 1 };
    const first = attemptOf(null, request, "p1");
    expect(first.body).toEqual({ ...request, plan_id: "p1" });
    expect(attemptOf(first, request, "p2")).toBe(first);
    expect(attemptOf(first, { ...request, replicas: 2 }, "p2").body).toEqual({ model: "smol", replicas: 2, plan_id: "p2" });
    expect(attemptOf(null, request, null).body).toEqual(request);
  });
});

describe("what it would take", () => {
  it("asks in people's words", () => {
    expect(wrongFields(PEOPLE)).toEqual([]);
    expect(toDemand({ users: "200", think: "0", reply: "80", first: "180" })).toEqual({ users: 200, think_seconds: 0, reply_tokens: 80, ttft_ms: 180 });
    expect(wrongFields({ users: "0", think: "-1", reply: "", first: "1.5" })).toEqual(["users", "think", "reply", "first"]);
  });
});
