/** Names of cached answers. The first part is the topic, so that a live event can mark a whole topic as old. */
import { QueryClient } from "@tanstack/react-query";
import { ApiError } from "./client";

export const keys = {
  me: ["me"] as const,
  org: (org: string) => ["orgs", org] as const,
  members: (org: string) => ["members", org] as const,
  apiKeys: (org: string) => ["keys", org] as const,
  models: (org: string) => ["models", org] as const,
  deployments: (org: string) => ["deployments", org] as const,
  deployment: (org: string, name: string) => ["deployments", org, name] as const,
  deploymentEvents: (org: string, name: string) => ["deployments", org, name, "events"] as const,
  deploymentStatus: (org: string, name: string) => ["deployments", org, name, "status"] as const,
  betterPlan: (org: string, name: string, revision: number) => ["plans", org, name, revision] as const,
  deploymentScaling: (org: string, name: string) => ["deployments", org, name, "scaling"] as const,
  revisions: (org: string, name: string) => ["deployments", org, name, "revisions"] as const,
  usage: (org: string, ...rest: unknown[]) => ["usage", org, ...rest] as const,
  budgets: (org: string) => ["budgets", org] as const,
  statements: (org: string, ...rest: unknown[]) => ["statements", org, ...rest] as const,
};

export function newQueryClient(): QueryClient {
  const client = new QueryClient({
    defaultOptions: {
      queries: {
        staleTime: 5_000,
        retry: (count, error) => count < 2 && error instanceof ApiError && error.retryable,
        retryDelay: (count) => 500 * 2 ** count,
      },
      mutations: { retry: false },
    },
  });
  // A session that ended anywhere is ended everywhere: the shell then shows the sign-in page.
  client.getQueryCache().subscribe((event) => {
    if (event.type !== "updated" || event.action.type !== "error") return;
    const error: unknown = event.query.state.error;
    const topic: unknown = (event.query.queryKey as readonly unknown[])[0];
    if (error instanceof ApiError && error.signedOut && topic !== "me") {
      void client.invalidateQueries({ queryKey: keys.me });
    }
  });
  return client;
}
