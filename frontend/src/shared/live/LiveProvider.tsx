import { useQueryClient } from "@tanstack/react-query";
import { createContext, type ReactNode, useContext, useEffect, useState } from "react";
import { type LiveStatus, openLive } from "./live";

const Context = createContext<LiveStatus>({ state: "connecting" });
const POLL_MS = 15_000;
const SETTLE_MS = 500; // at most two refreshes a second

/** What an event makes old: its topic, and what is derived from it. */
const AFFECTS: Record<string, readonly string[]> = { deployments: ["deployments", "models"], org: ["orgs"], usage: ["usage", "statements"] };
const ALL = ["orgs", "members", "keys", "models", "deployments", "usage", "statements"];

export function LiveProvider({ org, children }: { org: string; children: ReactNode }) {
  const client = useQueryClient();
  const [status, setStatus] = useState<LiveStatus>({ state: "connecting" });
  useEffect(() => {
    const waiting = new Set<string>();
    let timer = 0;
    const flush = () => {
      timer = 0;
      for (const topic of waiting) void client.invalidateQueries({ queryKey: [topic, org] });
      waiting.clear();
    };
    const mark = (topics: readonly string[]) => {
      for (const topic of topics) waiting.add(topic);
      if (timer === 0) timer = window.setTimeout(flush, SETTLE_MS);
    };
    const close = openLive(org, {
      status: (next) => setStatus((now) => (now.state === next.state ? now : next)),
      event: (event) => mark(AFFECTS[event.topic] ?? [event.topic]),
      reset: () => mark(ALL),
    });
    return () => {
      close();
      window.clearTimeout(timer);
    };
  }, [org, client]);
  return <Context.Provider value={status}>{children}</Context.Provider>;
}

export function useLive(): LiveStatus {
  return useContext(Context);
}

/** How often to ask while no event tells: `busy` is for what is changing just now. */
export function usePolling(busy = false): number | false {
  const { state } = useLive();
  if (state === "live") return busy ? 5_000 : false; // a safety net under the events
  return busy ? 2_000 : POLL_MS;
}
