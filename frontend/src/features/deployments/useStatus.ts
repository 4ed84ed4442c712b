import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Deployment, DeploymentStatus } from "@/shared/api/types";
import { usePolling } from "@/shared/live/LiveProvider";
import { watch } from "@/shared/live/watch";
import { useOrg } from "@/shared/session";
import { isMoving } from "@/shared/ui/Status";

export interface Watched {
  status: DeploymentStatus | undefined;
  streamed: boolean; // told as it happens; otherwise asked for now and then
}

/** What a deployment does now: streamed, or asked for while the stream is away. */
export function useStatus(deployment: Deployment): Watched {
  const { slug } = useOrg();
  const { name } = deployment;
  const client = useQueryClient();
  const idle = usePolling();
  const busy = usePolling(true);
  const [streamed, setStreamed] = useState(false);
  useEffect(
    () =>
      watch<DeploymentStatus>(`/api/v1/orgs/${encodeURIComponent(slug)}/deployments/${encodeURIComponent(name)}/live`, {
        status: (status) => client.setQueryData(keys.deploymentStatus(slug, name), status),
        open: setStreamed,
      }),
    [client, slug, name],
  );
  const { data } = useQuery({
    queryKey: keys.deploymentStatus(slug, name),
    queryFn: () => api.deploymentStatus(slug, name),
    refetchInterval: streamed ? false : isMoving(deployment.state) ? busy : idle,
  });
  return { status: data, streamed };
}
