import { useRef } from "react";
import { api } from "@/shared/api/api";
import { millis } from "@/shared/format/time";
import { serverNow } from "@/shared/api/client";
import type { PlaygroundKey } from "@/shared/api/types";

const SPARE_MS = 60_000;

/** A short-lived key in memory, renewed before it expires; gone with the page. */
export function usePlaygroundKey(org: string): { get: () => Promise<string>; drop: () => void } {
  const held = useRef<PlaygroundKey | null>(null);
  return {
    get: async () => {
      if (held.current === null || millis(held.current.expires_at) - serverNow() < SPARE_MS) held.current = await api.playgroundKey(org);
      return held.current.secret;
    },
    drop: () => {
      held.current = null;
    },
  };
}
