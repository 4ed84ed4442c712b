import { afterEach, describe, expect, it, vi } from "vitest";
import { ChatError, type ChatRequest, type Measured, streamChat } from "@/features/playground/chat";

const REQUEST: ChatRequest = { base: "http://127.0.0.1:1/v1", secret: "bth_sk_test", model: "my-org/m", chat: true, messages: [{ role: "user", content: "Hi" }], temperature: 0.5, maxTokens: 9 };
const encoder = new TextEncoder();
const chunk = (value: unknown) => encoder.encode(`data: ${JSON.stringify(value)}\n\n`);
const piece = (content: string) => chunk({ id: "chatcmpl-1", choices: [{ delta: { content } }] });
const DONE = encoder.encode("data: [DONE]\n\n");

afterEach(() => vi.unstubAllGlobals());

/** Answers with these pieces, one a read; the clock moves 100 ms with each look. */
function serve(pieces: (Uint8Array | Error)[], init: ResponseInit = {}) {
  const sent: RequestInit[] = [];
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      const next = pieces.shift();
      if (next === undefined) controller.close();
      else if (next instanceof Error) controller.error(next);
      else controller.enqueue(next);
    },
  });
  vi.stubGlobal("fetch", (_: string, options: RequestInit) => {
    sent.push(options);
    return Promise.resolve(new Response(body, init));
  });
  return sent;
}

async function run(signal = new AbortController().signal) {
  let text = "";
  const seen: Measured[] = [];
  let time = 0;
  const outcome = await streamChat(REQUEST, { onText: (more) => (text += more), onMeasured: (measured) => seen.push(measured) }, signal, () => (time += 100)).then(
    (measured) => ({ measured, error: null }),
    (error: unknown) => ({ measured: null, error }),
  );
  return { text, seen, ...outcome };
}

describe("a streamed answer", () => {
  it("gives text, tokens, speed and the reason for its end", async () => {
    serve(
      [chunk({ id: "c", choices: [{ delta: { role: "assistant" } }] }), piece("Hel"), piece("lo"), chunk({ id: "c", choices: [{ delta: {}, finish_reason: "stop" }] }), chunk({ id: "c", choices: [], usage: { prompt_tokens: 7, completion_tokens: 3 } }), DONE],
      { headers: { "x-request-id": "req_9" } },
    );
    const { text, measured } = await run();
    expect(text).toBe("Hello");
    // Started at 100; first piece seen at 300, last at 400: TTFT 200 ms, two more tokens in 100 ms.
    expect(measured).toEqual({ firstTokenMs: 200, tokensPerSecond: 20, promptTokens: 7, completionTokens: 3, finishReason: "stop", requestId: "req_9" });
  });

  it("asks for usage, sends the key as bearer and never a cookie", async () => {
    const sent = serve([DONE]);
    await run();
    expect(JSON.parse(sent[0]?.body as string)).toEqual({ model: "my-org/m", stream: true, stream_options: { include_usage: true }, messages: [{ role: "user", content: "Hi" }], temperature: 0.5, max_tokens: 9 });
    expect(sent[0]?.headers).toMatchObject({ Authorization: "Bearer bth_sk_test" });
    expect(sent[0]?.credentials).toBe("omit");
  });

  it("that ends without [DONE] is a failure with the partial text kept", async () => {
    serve([piece("Hel")]);
    const { text, error } = await run();
    expect(text).toBe("Hel");
    expect(error).toBeInstanceOf(ChatError);
    expect((error as ChatError).code).toBe("broken");
  });

  it("that breaks off is a failure with the partial text kept", async () => {
    serve([piece("Hel"), new TypeError("network error")]);
    const { text, error } = await run();
    expect([text, (error as ChatError).code]).toEqual(["Hel", "broken"]);
  });

  it("that reports an error in mid-stream fails with its code", async () => {
    serve([piece("Hel"), chunk({ error: { message: "The replica broke off.", type: "server_error", code: "upstream_error" } })]);
    const { text, error } = await run();
    expect([text, (error as ChatError).code, (error as ChatError).message]).toEqual(["Hel", "upstream_error", "The replica broke off."]);
  });

  it("that is refused gives the gateway's own code and sentence", async () => {
    serve([encoder.encode('{"error":{"message":"Over the limit.","type":"rate_limit","param":null,"code":"rate_limit_exceeded"}}')], { status: 429, headers: { "x-request-id": "req_3" } });
    const error = (await run()).error as ChatError;
    expect([error.code, error.message, error.status, error.requestId]).toEqual(["rate_limit_exceeded", "Over the limit.", 429, "req_3"]);
  });

  it("from an unreachable gateway says so, and a stop is not a failure", async () => {
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError("Failed to fetch")));
    expect(((await run()).error as ChatError).code).toBe("unreachable");
    const stopped = new AbortController();
    stopped.abort();
    vi.stubGlobal("fetch", () => Promise.reject(new DOMException("stopped", "AbortError")));
    expect((await run(stopped.signal)).error).toBeInstanceOf(DOMException);
  });
});
