import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { api } from "@/shared/api/api";
import type { PlanRequest } from "@/shared/api/types";

const SETTLE_MS = 300;
const ANEW_MS = 10 * 60_000; // a plan's id holds for a quarter of an hour

/** The plan for what the form says now, asked for when the form has been still for 300 ms. The last plan stays meanwhile. */
export function usePlan(org: string, request: PlanRequest | null) {
  const wanted = request === null ? null : JSON.stringify(request);
  const [settled, setSettled] = useState(wanted);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(wanted), SETTLE_MS);
    return () => window.clearTimeout(timer);
  }, [wanted]);
  const query = useQuery({
    queryKey: ["plans", org, settled],
    queryFn: ({ signal }) => api.plan(org, JSON.parse(settled ?? "null") as PlanRequest, signal),
    enabled: settled !== null,
    placeholderData: keepPreviousData,
    staleTime: 10_000,
    refetchInterval: ANEW_MS,
    gcTime: 30_000,
  });
  /** Whether what is shown answers what the form says. */
  const current = wanted !== null && wanted === settled && !query.isPlaceholderData && query.data !== undefined;
  return { query, current, busy: wanted !== null && !current && !query.isError };
}
