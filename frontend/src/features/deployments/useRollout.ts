import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import { useOrg } from "@/shared/session";

export type RolloutAct = "promote" | "hold" | "goOn" | { back: number | undefined };

/** What a person can do to a rollout. Going back is safe, so nothing asks whether it is meant. */
export function useRollout(name: string) {
  const { slug } = useOrg();
  const client = useQueryClient();
  return useMutation({
    mutationFn: (act: RolloutAct) => (typeof act === "string" ? api[act](slug, name) : api.rollBack(slug, name, act.back)),
    onSettled: () => client.invalidateQueries({ queryKey: keys.deployments(slug) }),
  });
}
