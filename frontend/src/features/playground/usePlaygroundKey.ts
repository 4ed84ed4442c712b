import { useRef } from "react";
import { api } from "@/shared/api/api";
import { millis } from "@/shared/format/time";
import { serverNow } from "@/shared/api/client";
import type { PlaygroundKey } from "@/shared/api/types";

const SPARE_MS = 60_000;

const ASK_MS = 100;
const PATIENCE = 30; // questions; then the call itself shows whether the gateway knows the key

/** Waits until the gateways know the key, so that the first call is not refused. */
async function arrived(org: string, change: number): Promise<void> {
  for (let asked = 0; asked < PATIENCE; asked += 1) {
    const { applied, total } = await api.change(org, change);
    if (total > 0 && applied >= total) return;
    await new Promise((resolve) => window.setTimeout(resolve, ASK_MS));
  }
}

/** A short-lived key in memory, renewed before it expires; gone with the page. */
export function usePlaygroundKey(org: string): { get: () => Promise<string>; drop: () => void } {
  const held = useRef<Promise<PlaygroundKey> | null>(null);
  const make = async () => {
    const key = await api.playgroundKey(org);
    await arrived(org, key.change.id);
    return key;
  };
  return {
    get: async () => {
      for (;;) {
        const asked = (held.current ??= make());
        try {
          const key = await asked;
          if (millis(key.expires_at) - serverNow() >= SPARE_MS) return key.secret;
        } catch (error) {
          if (held.current === asked) held.current = null;
          throw error;
        }
        if (held.current === asked) held.current = null; // old: make another
      }
    },
    drop: () => {
      held.current = null;
    },
  };
}
