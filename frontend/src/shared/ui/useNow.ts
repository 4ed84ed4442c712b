import { useEffect, useState } from "react";
import { serverNow } from "../api/client";

/** The server's time, renewed every `ms`; null stands still. */
export function useNow(ms: number | null): number {
  const [now, setNow] = useState(serverNow);
  useEffect(() => {
    if (ms === null) return;
    setNow(serverNow());
    const timer = window.setInterval(() => setNow(serverNow()), ms);
    return () => window.clearInterval(timer);
  }, [ms]);
  return now;
}
