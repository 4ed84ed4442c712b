/**
 * A stream about one thing: `status` at once and whenever it changes. It is open only while the page is seen, because a browser allows
 * few connections to a host; while it is not, whoever watches asks now and then instead.
 */

export interface Watcher<T> {
  status: (status: T) => void;
  open: (open: boolean) => void;
}

/** A heartbeat comes every 15 s; one late by a third is a dead stream. */
export const SILENCE_MS = 20_000;
const LEAST_PAUSE_MS = 2_000;
const MOST_PAUSE_MS = 30_000;

export function pauseAfter(failures: number): number {
  return Math.min(MOST_PAUSE_MS, LEAST_PAUSE_MS * 2 ** Math.max(0, failures - 1));
}

export function parseStatus(data: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(data);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

/** Watches until the returned function is called. */
export function watch<T>(address: string, { status, open }: Watcher<T>): () => void {
  let source: EventSource | null = null;
  let timer = 0;
  let failures = 0;
  let heard = Date.now();

  const stop = () => {
    window.clearTimeout(timer);
    source?.close();
    source = null;
    open(false);
  };
  const later = () => {
    stop();
    failures += 1;
    timer = window.setTimeout(start, pauseAfter(failures));
  };
  const hear = () => {
    heard = Date.now();
    failures = 0;
    open(true);
  };
  const start = () => {
    stop();
    if (document.visibilityState === "hidden") return;
    heard = Date.now();
    source = new EventSource(address);
    source.addEventListener("heartbeat", hear);
    source.addEventListener("status", (message) => {
      hear();
      const read = parseStatus((message as MessageEvent<string>).data);
      if (read) status(read as T);
    });
    source.onerror = later; // also when it was only interrupted: what was shown is then asked for until it is back
  };
  const seen = () => {
    if (document.visibilityState === "hidden") stop();
    else if (source === null) start();
  };
  const guard = window.setInterval(() => {
    if (source !== null && Date.now() - heard > SILENCE_MS) later();
  }, 1_000);
  document.addEventListener("visibilitychange", seen);
  start();
  return () => {
    document.removeEventListener("visibilitychange", seen);
    window.clearInterval(guard);
    stop();
  };
}
