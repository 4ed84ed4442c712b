/** One function per call of the management API. Features use these through queries and mutations. */
import { type Query, request } from "./client";
import type * as T from "./types";

const org = (slug: string, rest = "") => `/orgs/${encodeURIComponent(slug)}${rest}`;
const deployment = (slug: string, name: string, rest = "") => org(slug, `/deployments/${encodeURIComponent(name)}${rest}`);
const AUTH = "/auth/browser/v1";

export const api = {
  me: () => request<T.Me>("GET", "/me"),
  updateMe: (body: { name?: string; language?: T.Me["language"] }) => request<T.Me>("PATCH", "/me", { body }),
  signIn: (email: string, password: string) => request<unknown>("POST", `${AUTH}/auth/login`, { body: { email, password } }),
  signOut: () => request<unknown>("DELETE", `${AUTH}/auth/session`),
  changePassword: (current_password: string, new_password: string) =>
    request<unknown>("POST", `${AUTH}/account/password/change`, { body: { current_password, new_password } }),
  acceptInvitation: (body: { token: string; password?: string; name?: string }) =>
    request<T.Accepted>("POST", "/invitations/accept", { body }),

  org: (slug: string) => request<T.Organisation>("GET", org(slug)),
  members: (slug: string) => request<T.Page<T.Member>>("GET", org(slug, "/members"), { query: { limit: 200 } }),
  setRole: (slug: string, id: string, role: T.Role) => request<T.Member>("PATCH", org(slug, `/members/${id}`), { body: { role } }),
  removeMember: (slug: string, id: string) => request<unknown>("DELETE", org(slug, `/members/${id}`)),
  invitations: (slug: string) => request<T.Page<T.Invitation>>("GET", org(slug, "/invitations"), { query: { limit: 200 } }),
  invite: (slug: string, body: { email: string; role: T.Role }, idempotencyKey: string) =>
    request<T.IssuedInvitation>("POST", org(slug, "/invitations"), { body, idempotencyKey }),
  withdrawInvitation: (slug: string, id: string) => request<unknown>("DELETE", org(slug, `/invitations/${id}`)),

  keys: (slug: string, cursor?: string) => request<T.Page<T.ApiKey>>("GET", org(slug, "/keys"), { query: { cursor } }),
  createKey: (slug: string, body: T.CreateKey, idempotencyKey: string) =>
    request<T.IssuedKey>("POST", org(slug, "/keys"), { body, idempotencyKey }),
  revokeKey: (slug: string, id: string) => request<T.ChangedKey>("POST", org(slug, `/keys/${id}/revoke`)),
  playgroundKey: (slug: string) => request<T.PlaygroundKey>("POST", org(slug, "/playground-key")),
  change: (slug: string, id: number) => request<T.ChangeProgress>("GET", org(slug, "/gateways"), { query: { change: id } }),

  models: (slug: string) => request<T.Page<T.Model>>("GET", org(slug, "/models"), { query: { limit: 200 } }),
  addSampleModel: (slug: string, idempotencyKey: string) =>
    request<T.Model>("POST", org(slug, "/models"), { body: { source: "sample" }, idempotencyKey }),

  plan: (slug: string, body: T.PlanRequest, signal?: AbortSignal) =>
    request<T.Plan>("POST", org(slug, "/plans"), signal ? { body, signal } : { body }),
  planAnywhere: (slug: string, body: T.SurveyRequest) => request<T.Survey>("POST", org(slug, "/plans/anywhere"), { body }),
  deployments: (slug: string) => request<T.Page<T.Deployment>>("GET", org(slug, "/deployments"), { query: { limit: 200 } }),
  deployment: (slug: string, name: string) => request<T.Deployment>("GET", deployment(slug, name)),
  deploy: (slug: string, body: T.DeployRequest, idempotencyKey: string) =>
    request<T.Deployment>("POST", org(slug, "/deployments"), { body, idempotencyKey }),
  updateDeployment: (slug: string, name: string, body: T.DeploymentChange) =>
    request<T.Deployment>("PATCH", deployment(slug, name), { body }),
  betterPlan: (slug: string, name: string) => request<T.BetterPlan>("GET", deployment(slug, name, "/plan")),
  deleteDeployment: (slug: string, name: string) => request<unknown>("DELETE", deployment(slug, name)),
  pause: (slug: string, name: string) => request<T.Deployment>("POST", deployment(slug, name, "/pause")),
  resume: (slug: string, name: string) => request<T.Deployment>("POST", deployment(slug, name, "/resume")),
  wake: (slug: string, name: string) => request<T.Deployment>("POST", deployment(slug, name, "/wake")),
  deploymentStatus: (slug: string, name: string) => request<T.DeploymentStatus>("GET", deployment(slug, name, "/status")),
  deploymentScaling: (slug: string, name: string) => request<T.DeploymentScaling>("GET", deployment(slug, name, "/scaling")),
  changeScaling: (slug: string, name: string, body: T.ScalingChange) => request<T.DeploymentScaling>("PATCH", deployment(slug, name, "/scaling"), { body }),
  setPeaks: (slug: string, name: string, peaks: T.NewPeak[]) => request<T.DeploymentScaling>("PUT", deployment(slug, name, "/scaling/peaks"), { body: { peaks } }),
  promote: (slug: string, name: string) => request<T.Rollout>("POST", deployment(slug, name, "/rollout/promote"), { body: {} }),
  hold: (slug: string, name: string) => request<T.Rollout>("POST", deployment(slug, name, "/rollout/hold"), { body: {} }),
  goOn: (slug: string, name: string) => request<T.Rollout>("POST", deployment(slug, name, "/rollout/resume"), { body: {} }),
  rollBack: (slug: string, name: string, number?: number) => request<T.Rollout>("POST", deployment(slug, name, "/rollback"), { body: number === undefined ? {} : { number } }),
  deploymentEvents: (slug: string, name: string, cursor?: string) =>
    request<T.Page<T.DeploymentEvent>>("GET", deployment(slug, name, "/events"), { query: { cursor } }),
  revisions: (slug: string, name: string) => request<T.Page<T.Revision>>("GET", deployment(slug, name, "/revisions")),
  logs: (slug: string, name: string, query: Query) => request<T.LogPage>("GET", deployment(slug, name, "/logs"), { query }),

  usage: (slug: string, query: Query) => request<T.Usage>("GET", org(slug, "/usage"), { query }),
  usageEvents: (slug: string, query: Query) => request<T.Page<T.UsageEvent>>("GET", org(slug, "/usage/events"), { query }),
  budgets: (slug: string) => request<T.Page<T.Budget>>("GET", org(slug, "/budgets"), { query: { limit: 200 } }),
  createBudget: (slug: string, body: T.NewBudget, idempotencyKey: string) =>
    request<T.Budget>("POST", org(slug, "/budgets"), { body, idempotencyKey }),
  changeBudget: (slug: string, id: string, amount: string) => request<T.Budget>("PATCH", org(slug, `/budgets/${id}`), { body: { amount } }),
  deleteBudget: (slug: string, id: string) => request<unknown>("DELETE", org(slug, `/budgets/${id}`)),
  statements: (slug: string) => request<T.Page<T.StatementSummary>>("GET", org(slug, "/statements")),
  statement: (slug: string, period: string) => request<T.Statement>("GET", org(slug, `/statements/${period}`)),
  lineEvents: (slug: string, period: string, line: string, cursor?: string) =>
    request<T.Page<T.LineEvent>>("GET", org(slug, `/statements/${period}/lines/${encodeURIComponent(line)}/events`), { query: { cursor } }),
};
