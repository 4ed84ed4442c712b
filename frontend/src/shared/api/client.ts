/** Calls the management API with the session cookie; every failure becomes an ApiError with a stable code. */

const BASE = "/api/v1";

export class ApiError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly status: number,
    readonly params: Record<string, unknown> = {},
    readonly field: string | null = null,
    readonly requestId: string | null = null,
    readonly retryAfter: number | null = null,
  ) {
    super(message);
    this.name = "ApiError";
  }

  /** Nobody is signed in (any more). */
  get signedOut(): boolean {
    return this.status === 401 || this.code === "signed_out";
  }

  /** The answer may differ when the very same request is sent again. */
  get retryable(): boolean {
    return this.status === 0 || this.status >= 500 || this.status === 429;
  }
}

export type Query = Record<string, string | number | boolean | null | undefined>;

export interface RequestOptions {
  body?: unknown;
  query?: Query;
  signal?: AbortSignal;
  idempotencyKey?: string;
}

let serverAhead = 0; // ms that the server's clock is ahead of ours

/** Now by the server's clock, so that elapsed times are right on a machine whose clock is wrong. */
export function serverNow(): number {
  return Date.now() + serverAhead;
}

export function url(path: string, query?: Query): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return BASE + path + (text === "" ? "" : `?${text}`);
}

export function csrfToken(cookies: string): string | null {
  const found = /(?:^|;\s*)(?:__Host-)?berth_csrf=([^;]+)/.exec(cookies);
  return found?.[1] ?? null;
}

/** Random and unguessable; works without a secure context, where crypto.randomUUID is missing. */
export function newIdempotencyKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export async function request<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
  const safe = method === "GET";
  if (!safe && csrfToken(document.cookie) === null) await send("GET", "/csrf", {});
  try {
    return await send<T>(method, path, options);
  } catch (error) {
    if (safe || !(error instanceof ApiError) || error.code !== "csrf_failed") throw error;
    await send("GET", "/csrf", {}); // the token was old: fetch a new one and try once more
    return send<T>(method, path, options);
  }
}

async function send<T>(method: string, path: string, options: RequestOptions): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json" };
  const init: RequestInit = { method, headers, credentials: "same-origin" };
  if (options.signal) init.signal = options.signal;
  if (options.body !== undefined) {
    headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(options.body);
  }
  if (method !== "GET") headers["X-CSRFToken"] = csrfToken(document.cookie) ?? "";
  if (options.idempotencyKey !== undefined) headers["Idempotency-Key"] = options.idempotencyKey;
  let response: Response;
  try {
    response = await fetch(url(path, options.query), init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("network", "Berth cannot be reached. Check your connection; nothing was lost.", 0);
  }
  noteClock(response);
  if (!response.ok) throw await toError(response);
  if (response.status === 204) return undefined as T;
  return (await response.json()) as T;
}

function noteClock(response: Response): void {
  const date = response.headers.get("Date");
  if (date === null) return;
  const ahead = Date.parse(date) + 500 - Date.now(); // the header has whole seconds
  if (Number.isFinite(ahead)) serverAhead = Math.abs(ahead) < 2000 ? 0 : ahead;
}

/** The API's one error shape; whatever else answers (a proxy, a crash) still gives a code and a sentence. */
export async function toError(response: Response): Promise<ApiError> {
  const retryAfter = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  const wait = Number.isNaN(retryAfter) ? null : retryAfter;
  const requestId = response.headers.get("X-Request-Id");
  let content: unknown = null;
  try {
    content = await response.json();
  } catch {
    // Not JSON: the fallback below says what is known.
  }
  const error = errorOf(content);
  if (error === null) {
    return new ApiError("unexpected", `The server answered ${response.status} without an explanation.`, response.status, { status: response.status }, null, requestId, wait);
  }
  return new ApiError(
    text(error["code"]) ?? "unexpected",
    text(error["message"]) ?? `The server answered ${response.status}.`,
    response.status,
    isRecord(error["params"]) ? error["params"] : {},
    text(error["field"]),
    text(error["request_id"]) ?? requestId,
    wait,
  );
}

function errorOf(content: unknown): Record<string, unknown> | null {
  return isRecord(content) && isRecord(content["error"]) ? content["error"] : null;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text(value: unknown): string | null {
  return typeof value === "string" && value !== "" ? value : null;
}

export function toApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  return new ApiError("internal", error instanceof Error ? error.message : "Something unexpected happened in this page.", 0);
}
