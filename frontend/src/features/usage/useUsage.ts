import { useQuery } from "@tanstack/react-query";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import { serverNow } from "@/shared/api/client";
import type { UsageGroupBy } from "@/shared/api/types";
import { useOrg } from "@/shared/session";
import { interval, type Range } from "./ranges";

const REFRESH_MS = 10_000;

export function useOrganisation() {
  const { slug } = useOrg();
  return useQuery({ queryKey: keys.org(slug), queryFn: () => api.org(slug), staleTime: 300_000 });
}

/** Totals and groups of a range; both the overview's tiles and the usage page ask this one question. */
export function useUsage(range: Range, groupBy: UsageGroupBy) {
  const { slug } = useOrg();
  const zone = useOrganisation().data?.time_zone;
  return useQuery({
    queryKey: keys.usage(slug, range, groupBy),
    queryFn: () => api.usage(slug, { ...interval(range, serverNow(), zone ?? "UTC"), group_by: groupBy }),
    enabled: zone !== undefined,
    refetchInterval: range === "lastMonth" ? false : REFRESH_MS,
  });
}
