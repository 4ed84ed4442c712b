/**
 * Live updates: one EventSource for a browser. The tab that holds the lock reads the stream and tells the others over a
 * BroadcastChannel (HTTP/1.1 allows six connections to a host). Where locks are missing each tab reads for itself.
 */

export interface LiveEvent {
  id: string;
  topic: string;
  resource: string;
}

export type LiveStatus = { state: "connecting" } | { state: "live" } | { state: "paused"; since: number };

export interface LiveHandlers {
  status: (status: LiveStatus) => void;
  event: (event: LiveEvent) => void;
  reset: () => void; // something may have been missed: everything shown must be fetched again
}

type Message = { kind: "hello" } | { kind: "beat" } | { kind: "reset" } | { kind: "event"; event: LiveEvent };

/** A heartbeat comes every 15 s; one late by a third is a dead stream. */
export const SILENCE_MS = 20_000;
/** The topics of the stream; each event is named after its topic. */
const TOPICS = ["org", "members", "keys", "models", "deployments", "usage", "statements"];

export function parseLive(data: string): LiveEvent | null {
  try {
    const value: unknown = JSON.parse(data);
    if (typeof value !== "object" || value === null) return null;
    const { id, topic, resource } = value as Record<string, unknown>;
    if (typeof topic !== "string") return null;
    return { id: typeof id === "string" ? id : "", topic, resource: typeof resource === "string" ? resource : "" };
  } catch {
    return null;
  }
}

export function openLive(org: string, handlers: LiveHandlers): () => void {
  const closed = new AbortController();
  const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel(`berth-live-${org}`);
  let heard = Date.now();
  let paused = false;
  let leading = false; // this tab reads the stream, and it speaks

  const receive = (message: Message) => {
    heard = Date.now();
    if (paused) handlers.reset(); // what happened while nothing was heard is unknown
    paused = false;
    handlers.status({ state: "live" });
    if (message.kind === "event") handlers.event(message.event);
    if (message.kind === "reset") handlers.reset();
  };
  const pause = () => {
    if (paused) return;
    paused = true;
    handlers.status({ state: "paused", since: heard });
  };
  const watch = window.setInterval(() => {
    if (Date.now() - heard > SILENCE_MS) pause();
  }, 1000);

  if (channel) {
    channel.onmessage = ({ data }: MessageEvent<Message>) => {
      if (data.kind !== "hello") receive(data);
      else if (leading && !paused) channel.postMessage({ kind: "beat" } satisfies Message);
    };
    channel.postMessage({ kind: "hello" } satisfies Message); // a new tab need not wait for the next heartbeat
  }
  const tell = (message: Message) => {
    leading = true;
    receive(message);
    channel?.postMessage(message);
  };
  const lead = () => readStream(org, tell, pause, closed.signal);
  // The type says it is always there; without a secure context it is not.
  const locks = (navigator as { locks?: LockManager }).locks;
  if (locks && channel) {
    locks.request(`berth-live-${org}`, { signal: closed.signal }, lead).catch(() => undefined); // rejected only when closed
  } else {
    void lead();
  }
  return () => {
    closed.abort();
    window.clearInterval(watch);
    channel?.close();
  };
}

/** Reads until closed, reconnecting with growing pauses when the browser gives up. */
function readStream(
  org: string,
  tell: (message: Message) => void,
  pause: () => void,
  signal: AbortSignal,
): Promise<void> {
  return new Promise((resolve) => {
    let source: EventSource | null = null;
    let attempt = 0;
    let timer = 0;
    const connect = () => {
      const address = `/api/v1/orgs/${encodeURIComponent(org)}/events`;
      const stream = new EventSource(address);
      source = stream;
      const onEvent = (message: Event) => {
        const event = parseLive((message as MessageEvent<string>).data);
        if (event) tell({ kind: "event", event });
      };
      stream.onopen = () => {
        attempt = 0;
        tell({ kind: "beat" });
      };
      stream.addEventListener("heartbeat", () => tell({ kind: "beat" }));
      stream.addEventListener("reset", () => tell({ kind: "reset" }));
      stream.onmessage = onEvent;
      for (const name of TOPICS) stream.addEventListener(name, onEvent);
      stream.onerror = () => {
        pause();
        if (stream.readyState !== EventSource.CLOSED) return; // the browser reconnects by itself
        stream.close();
        attempt += 1;
        timer = window.setTimeout(connect, Math.min(30_000, 1000 * 2 ** attempt));
      };
    };
    signal.addEventListener("abort", () => {
      window.clearTimeout(timer);
      source?.close();
      resolve();
    });
    connect();
  });
}
