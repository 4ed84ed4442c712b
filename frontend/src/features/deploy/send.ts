import { useMutation, type UseMutationResult, useQueryClient } from "@tanstack/react-query";
import { useRef } from "react";
import { useLocation } from "wouter";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import { ApiError } from "@/shared/api/client";
import type { Deployment } from "@/shared/api/types";
import { useIdempotencyKey } from "@/shared/api/useIdempotencyKey";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { useToast } from "@/shared/ui/Toasts";
import { type Draft, type Kept, toChange, toRequest } from "./form";
import { type Attempt, attemptOf } from "./stale";

export interface Wish {
  draft: Draft;
  planId: string | null | undefined; // of the plan that was seen
}

export type Send = UseMutationResult<Deployment, Error, Wish>;

/** POST deployments: the plan that was seen, once. */
export function useDeploy(): Send {
  const { t } = useI18n();
  const { slug } = useOrg();
  const [, go] = useLocation();
  const client = useQueryClient();
  const toast = useToast();
  const idempotency = useIdempotencyKey();
  const attempt = useRef<Attempt | null>(null);
  return useMutation({
    mutationFn: ({ draft, planId }) => {
      attempt.current = attemptOf(attempt.current, toRequest(draft), planId);
      return api.deploy(slug, attempt.current.body, idempotency.keyFor(attempt.current.body));
    },
    onSuccess: (made) => {
      toast(t("deploy.started", { name: made.name }));
      void client.invalidateQueries({ queryKey: keys.models(slug) });
      client.setQueryData(keys.deployment(slug, made.name), made);
      go(`/o/${slug}/deployments/${made.name}`);
    },
    onSettled: (_, error) => {
      idempotency.settle(error);
      if (!(error instanceof ApiError && error.retryable)) attempt.current = null;
      void client.invalidateQueries({ queryKey: keys.deployments(slug), exact: true });
    },
  });
}

/** PATCH deployments: a new revision of what runs. */
export function useNeedsChange(name: string, kept: Kept): Send {
  const { t } = useI18n();
  const { slug } = useOrg();
  const [, go] = useLocation();
  const client = useQueryClient();
  const toast = useToast();
  return useMutation({
    mutationFn: ({ draft }) => api.updateDeployment(slug, name, toChange(draft, kept)),
    onSuccess: (fresh) => {
      toast(t("deployment.scale.saved", { number: String(fresh.revision.number) }));
      client.setQueryData(keys.deployment(slug, name), fresh);
      go(`/o/${slug}/deployments/${name}`);
    },
    onSettled: () => client.invalidateQueries({ queryKey: keys.deployments(slug) }),
  });
}
