import { useRef } from "react";
import { ApiError, newIdempotencyKey } from "./client";

/**
 * One key for one intent: the same content sent again after a lost answer carries the same key, so that it is done once.
 * A refusal (4xx) ends the intent; the next try is a new one.
 */
export function useIdempotencyKey(): { keyFor: (body: unknown) => string; settle: (error: unknown) => void } {
  const held = useRef<{ content: string; key: string } | null>(null);
  return {
    keyFor: (body) => {
      const content = JSON.stringify(body);
      if (held.current?.content !== content) held.current = { content, key: newIdempotencyKey() };
      return held.current.key;
    },
    settle: (error) => {
      if (error instanceof ApiError && error.retryable) return;
      held.current = null;
    },
  };
}
