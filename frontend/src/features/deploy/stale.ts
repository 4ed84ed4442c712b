/** What the server tells when a plan is not what it was: 409 `plan.stale`. Pure, so that it can be tested without a page. */
import { ApiError } from "@/shared/api/client";
import type { DeployRequest } from "@/shared/api/types";

export interface Difference {
  field: string;
  before: unknown;
  after: unknown;
}

export interface Stale {
  differences: Difference[];
  expired: boolean;
  currency: string;
}

const HIDDEN = new Set(["artefact_id"]); // an id says nothing to people; the quantization does

/** null: the error is another one. */
export function staleOf(error: unknown): Stale | null {
  if (!(error instanceof ApiError) || error.code !== "plan.stale") return null;
  const { differences, expired, currency } = error.params;
  const found = Array.isArray(differences) ? differences.filter(isDifference) : [];
  const shown = found.filter((each) => !HIDDEN.has(each.field));
  return { differences: shown.length > 0 ? shown : found, expired: expired === true, currency: typeof currency === "string" ? currency : "" };
}

function isDifference(value: unknown): value is Difference {
  return typeof value === "object" && value !== null && "field" in value && typeof value.field === "string" && "before" in value && "after" in value;
}

export interface Attempt {
  content: string;
  body: DeployRequest;
}

/** What is sent. A try again of the same wish sends the very same body, whatever plan has come since: it must be done once only. */
export function attemptOf(held: Attempt | null, request: DeployRequest, planId: string | null | undefined): Attempt {
  const content = JSON.stringify(request);
  if (held?.content === content) return held;
  return { content, body: planId ? { ...request, plan_id: planId } : request };
}
