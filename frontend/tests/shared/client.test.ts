import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { ApiError, csrfToken, request, url } from "@/shared/api/client";

interface Call {
  address: string;
  init: RequestInit;
}

let calls: Call[] = [];
let answers: (Response | Error)[] = [];

beforeEach(() => {
  calls = [];
  answers = [];
  vi.stubGlobal("document", { cookie: "berth_csrf=token1" });
  vi.stubGlobal("fetch", (address: string, init: RequestInit) => {
    calls.push({ address, init });
    const answer = answers.shift() ?? new Response(null, { status: 204 });
    return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer);
  });
});
afterEach(() => vi.unstubAllGlobals());

function problem(status: number, error: Record<string, unknown>, headers: Record<string, string> = {}): Response {
  return new Response(JSON.stringify({ error }), { status, headers });
}

async function failure(method = "GET"): Promise<ApiError> {
  return request(method, "/me").then(
    () => Promise.reject(new Error("it did not fail")),
    (error: unknown) => error as ApiError,
  );
}

describe("errors of the API", () => {
  it("carry code, field, parameters and request id", async () => {
    answers = [problem(409, { code: "key.name_taken", message: "Taken.", params: { name: "ci" }, field: "name", request_id: "req_1" })];
    const error = await failure();
    expect(error).toBeInstanceOf(ApiError);
    expect([error.code, error.message, error.status, error.params, error.field, error.requestId, error.retryable]).toEqual(["key.name_taken", "Taken.", 409, { name: "ci" }, "name", "req_1", false]);
  });

  it("are told even when a proxy answers with a page", async () => {
    answers = [new Response("<html>Bad gateway</html>", { status: 502, headers: { "X-Request-Id": "req_2" } })];
    const error = await failure();
    expect([error.code, error.status, error.requestId, error.retryable]).toEqual(["unexpected", 502, "req_2", true]);
  });

  it("are told when the error has another shape", async () => {
    answers = [new Response(JSON.stringify({ error: "no" }), { status: 400 }), new Response(JSON.stringify([1]), { status: 400 })];
    expect((await failure()).code).toBe("unexpected");
    expect((await failure()).code).toBe("unexpected");
  });

  it("say when to come back", async () => {
    answers = [problem(429, { code: "throttled", message: "Slow down." }, { "Retry-After": "17" })];
    expect((await failure()).retryAfter).toBe(17);
  });

  it("tell a lost connection from an answer", async () => {
    answers = [new TypeError("Failed to fetch")];
    const error = await failure();
    expect([error.code, error.status, error.retryable]).toEqual(["network", 0, true]);
  });

  it("know that nobody is signed in, by status or by code", async () => {
    answers = [problem(401, { code: "x", message: "" }), problem(403, { code: "signed_out", message: "" }), problem(403, { code: "permission.denied", message: "" })];
    expect([(await failure()).signedOut, (await failure()).signedOut, (await failure()).signedOut]).toEqual([true, true, false]);
  });
});

describe("requests", () => {
  it("send the CSRF token with what changes something, and none with reads", async () => {
    await request("GET", "/me");
    await request("POST", "/x", { body: { a: 1 }, idempotencyKey: "k" });
    const headers = calls.map(({ init }) => init.headers as Record<string, string>);
    expect(headers[0]).not.toHaveProperty("X-CSRFToken");
    expect(headers[1]).toMatchObject({ "X-CSRFToken": "token1", "Idempotency-Key": "k", "Content-Type": "application/json" });
    expect(calls[1]?.init.body).toBe('{"a":1}');
  });

  it("fetch a token first when there is none", async () => {
    vi.stubGlobal("document", { cookie: "" });
    await request("POST", "/x");
    expect(calls.map(({ address, init }) => [init.method, address])).toEqual([["GET", "/api/v1/csrf"], ["POST", "/api/v1/x"]]);
  });

  it("renew an old token once, and only once", async () => {
    const old = () => problem(403, { code: "csrf_failed", message: "" });
    answers = [old(), new Response(null, { status: 204 }), old()];
    expect((await failure("POST")).code).toBe("csrf_failed");
    expect(calls.map(({ init }) => init.method)).toEqual(["POST", "GET", "POST"]);
  });

  it("find the token under both of its names", () => {
    expect(csrfToken("a=1; __Host-berth_csrf=abc")).toBe("abc");
    expect(csrfToken("a=1; berth_csrf=def; b=2")).toBe("def");
    expect(csrfToken("other_berth_csrf=no")).toBeNull();
  });

  it("leave empty filters out of the address", () => {
    expect(url("/orgs/a/usage", { from: "2026-11-01T00:00:00Z", cursor: undefined, key: null, x: "" })).toBe("/api/v1/orgs/a/usage?from=2026-11-01T00%3A00%3A00Z");
  });
});
