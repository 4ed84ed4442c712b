/** Talks to the OpenAI-compatible API of the gateway with a key that lives in this module's caller only. */
import { SseParser } from "./sse";

export interface ChatMessage {
  role: "system" | "user" | "assistant";
  content: string;
}

export interface ChatRequest {
  base: string; // "http://127.0.0.1:8081/v1"
  secret: string;
  model: string;
  chat: boolean; // false: the model has no chat template, so the prompt goes to /completions
  messages: readonly ChatMessage[];
  temperature: number | null;
  maxTokens: number | null;
}

export interface Measured {
  firstTokenMs: number | null;
  tokensPerSecond: number | null;
  promptTokens: number | null;
  completionTokens: number | null;
  finishReason: string | null;
  requestId: string | null;
}

/** `code` as the gateway gave it, or "unreachable" | "broken" when there was no answer or it ended early. */
export class ChatError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly status: number,
    readonly requestId: string | null,
  ) {
    super(message);
    this.name = "ChatError";
  }
}

export const NOTHING: Measured = { firstTokenMs: null, tokensPerSecond: null, promptTokens: null, completionTokens: null, finishReason: null, requestId: null };

/** Streams one answer. `onText` gets each piece, `onMeasured` what is known so far. Rejects with AbortError when stopped. */
export async function streamChat(
  request: ChatRequest,
  handlers: { onText: (piece: string) => void; onMeasured: (measured: Measured) => void },
  signal: AbortSignal,
  now: () => number = () => performance.now(),
): Promise<Measured> {
  const started = now();
  const response = await post(request, signal);
  const reading = new Reading(started, response.headers.get("x-request-id"));
  if (response.body === null) throw new ChatError("broken", "The answer has no body.", response.status, reading.measured.requestId);
  const parser = new SseParser();
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read().catch((error: unknown) => {
      if (signal.aborted) throw error;
      throw new ChatError("broken", "The connection broke off before the answer was whole.", response.status, reading.measured.requestId);
    });
    for (const data of done ? parser.end() : parser.push(value)) {
      const piece = reading.take(data, now());
      if (piece !== "") handlers.onText(piece);
    }
    handlers.onMeasured(reading.measured);
    if (done) break;
  }
  if (!reading.finished) throw new ChatError("broken", "The stream ended before the answer was whole.", response.status, reading.measured.requestId);
  return reading.measured;
}

async function post(request: ChatRequest, signal: AbortSignal): Promise<Response> {
  const body: Record<string, unknown> = { model: request.model, stream: true, stream_options: { include_usage: true } };
  if (request.chat) body["messages"] = request.messages;
  else body["prompt"] = request.messages.at(-1)?.content ?? "";
  if (request.temperature !== null) body["temperature"] = request.temperature;
  if (request.maxTokens !== null) body["max_tokens"] = request.maxTokens;
  let response: Response;
  try {
    response = await fetch(`${request.base}/${request.chat ? "chat/completions" : "completions"}`, {
      method: "POST",
      headers: { Authorization: `Bearer ${request.secret}`, "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
      credentials: "omit",
      cache: "no-store",
    });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ChatError("unreachable", "The gateway cannot be reached.", 0, null);
  }
  if (!response.ok) throw await refused(response);
  return response;
}

async function refused(response: Response): Promise<ChatError> {
  const requestId = response.headers.get("x-request-id");
  try {
    const content = (await response.json()) as { error?: { message?: unknown; code?: unknown; type?: unknown } };
    const { message, code, type } = content.error ?? {};
    return new ChatError(string(code) ?? string(type) ?? "refused", string(message) ?? `The gateway answered ${response.status}.`, response.status, requestId);
  } catch {
    return new ChatError("refused", `The gateway answered ${response.status}.`, response.status, requestId);
  }
}

function string(value: unknown): string | null {
  return typeof value === "string" && value !== "" ? value : null;
}

interface Chunk {
  id?: string;
  choices?: { delta?: { content?: string | null }; text?: string | null; finish_reason?: string | null }[];
  usage?: { prompt_tokens?: number; completion_tokens?: number } | null;
  error?: { message?: string; code?: string | null };
}

/** What the chunks say, with the times at which they came. */
class Reading {
  finished = false;
  measured: Measured;
  private first: number | null = null;
  private last = 0;
  private pieces = 0;

  constructor(
    private readonly started: number,
    requestId: string | null,
  ) {
    this.measured = { ...NOTHING, requestId };
  }

  take(data: string, at: number): string {
    if (data === "[DONE]") {
      this.finished = true;
      return "";
    }
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error) throw new ChatError(chunk.error.code ?? "broken", chunk.error.message ?? "The answer broke off.", 200, this.measured.requestId);
    const choice = chunk.choices?.[0];
    const piece = choice?.delta?.content ?? choice?.text ?? "";
    if (piece !== "") this.produced(at);
    const { usage } = chunk;
    this.measured = {
      firstTokenMs: this.first === null ? null : this.first - this.started,
      tokensPerSecond: this.speed(usage?.completion_tokens),
      promptTokens: usage?.prompt_tokens ?? this.measured.promptTokens,
      completionTokens: usage?.completion_tokens ?? (this.pieces > 0 ? this.pieces : null),
      finishReason: choice?.finish_reason ?? this.measured.finishReason,
      requestId: this.measured.requestId ?? chunk.id ?? null,
    };
    return piece;
  }

  private produced(at: number): void {
    this.first ??= at;
    this.last = at;
    this.pieces += 1;
  }

  /** Tokens after the first, by the time from the first to the last: the waiting for the first is TTFT's. */
  private speed(completion: number | undefined): number | null {
    const tokens = completion ?? this.pieces;
    if (this.first === null || tokens < 2 || this.last <= this.first) return null;
    return ((tokens - 1) * 1000) / (this.last - this.first);
  }
}
