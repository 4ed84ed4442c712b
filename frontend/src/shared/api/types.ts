/** Shapes of the management API (docs/openapi.yaml). Instants are ISO 8601 in UTC; money is exact: decimal strings or integer micro-units. */

export type Action =
  | "org.read"
  | "org.update"
  | "members.read"
  | "members.write"
  | "keys.create"
  | "keys.read_own"
  | "keys.read_all"
  | "keys.create_service"
  | "models.read"
  | "models.write"
  | "deployments.read"
  | "deployments.write"
  | "deployments.delete"
  | "logs.read"
  | "infer"
  | "usage.read"
  | "billing.read";

export type Role = "owner" | "admin" | "developer" | "billing" | "viewer";
export type Params = Record<string, unknown>;

export interface Page<T> {
  items: T[];
  next: string | null;
}

export interface Membership {
  org: { id: string; slug: string; name: string; suspended: boolean; suspended_reason: string };
  role: Role;
  permissions: Action[];
}

export interface Me {
  id: string;
  email: string;
  name: string;
  language: string;
  is_operator: boolean;
  memberships: Membership[];
  api_base: string;
  currency: string;
  version: string;
}

export interface Organisation {
  id: string;
  slug: string;
  name: string;
  time_zone: string;
}

export interface Person {
  id: string;
  email: string;
  name: string;
}

export interface Member {
  id: string;
  user: Person;
  role: Role;
  created_at: string;
}

export interface Invitation {
  id: string;
  email: string;
  role: Role;
  created_at: string;
  expires_at: string;
  token?: string;
  url?: string;
}

export interface ApiKey {
  id: string;
  name: string;
  kind: "member" | "service" | "playground";
  hint: string;
  scopes: string[];
  deployment_ids: string[] | null;
  created_by: Person;
  created_at: string;
  expires_at: string | null;
  revoked_at: string | null;
  last_used_at: string | null;
  status: "active" | "expired" | "revoked";
  secret?: string;
  change?: { id: number };
}

export interface ChangeProgress {
  applied: number;
  total: number;
  missing: string[];
}

export interface PlaygroundKey {
  secret: string;
  expires_at: string;
}

export interface Artefact {
  id: string;
  format: string;
  quantization: string;
  size: number;
  engines: string[];
}

export interface ModelFacts {
  architecture?: string;
  parameters?: number;
  context_length?: number;
  layers?: number;
  has_chat_template?: boolean;
  [fact: string]: unknown;
}

export interface ModelVersion {
  id: string;
  number: number;
  source: string;
  licence: string;
  created_at: string;
  facts: ModelFacts;
  artefacts: Artefact[];
}

export interface Model {
  id: string;
  name: string;
  description: string;
  created_at: string;
  versions: ModelVersion[];
  deployments: string[];
}

export interface Needs {
  context_length?: number;
  concurrency?: number;
  quality?: string;
  max_price_per_hour?: string;
  tokens_per_second?: number;
}

export interface Pins {
  artefact_id?: string;
  engine?: string;
  tier?: string;
  context_length?: number;
  slots?: number;
}

export interface PlanMessage {
  code: string;
  message: string;
  params: Params;
}

export interface Rejected extends PlanMessage {
  engine: string;
  quantization: string;
  tier: string;
}

export interface Estimate {
  value: number | null;
  low: number | null;
  high: number | null;
}

export interface PlanMemory {
  weights: number;
  kv: number;
  overhead: number;
  total: number;
  available: number;
}

export interface PlanChoice {
  engine: string;
  artefact: { id: string; quantization: string; size: number };
  tier: string;
  context_length: number;
  slots: number;
  threads: number;
  replicas: number;
  memory: PlanMemory;
  predicted: { tokens_per_second: Estimate | null; first_token_ms?: Estimate | null } | null;
  price_per_hour: string | null;
  reasons: PlanMessage[];
}

export interface Plan {
  fits: boolean;
  choice: PlanChoice | null;
  rejected: Rejected[];
  changes: PlanMessage[];
}

export interface PlanRequest {
  model: string;
  version?: number;
  needs: Needs;
  pins?: Pins;
}

export interface DeployRequest extends PlanRequest {
  name?: string;
  replicas?: number;
}

export type DeploymentState =
  | "queued"
  | "starting"
  | "ready"
  | "updating"
  | "degraded"
  | "stopping"
  | "paused"
  | "failed"
  | "deleted";

export interface PhaseTiming {
  phase: string;
  started_at: string | number;
  ended_at: string | number | null;
  done: number | null;
  total: number | null;
}

export interface Replica {
  id: string;
  name: string;
  ordinal: number;
  revision: number;
  phase: string;
  phases: PhaseTiming[];
  started_at: string;
  ready_at: string | null;
  ended_at: string | null;
  reason: string;
  message: string;
}

export interface Revision {
  number: number;
  engine: string;
  quantization: string;
  tier: string;
  context_length: number;
  slots: number;
  threads: number;
  memory: number;
  replicas: number;
  needs: Needs;
  plan: Plan | PlanChoice | null;
  created_at: string;
}

export interface Deployment {
  id: string;
  name: string;
  model_id: string;
  model: string;
  version: number;
  state: DeploymentState;
  state_since: string;
  desired: "running" | "paused" | "deleted";
  reason: string;
  message: string;
  revision: Revision | null;
  replicas: Replica[];
  usual: Record<string, number>;
  next: { code: string; message: string; usual_seconds: number | null } | null;
  created_at: string;
}

export interface DeploymentEvent {
  id: string;
  kind: string;
  data: Params;
  actor: Person | null;
  at: string;
}

export interface LogLine {
  number: number;
  at: string;
  source: string;
  text: string | null;
  withheld: number | null;
}

export interface LogPage {
  items: LogLine[];
  next_after: number | null;
  more: boolean;
}

export interface UsageNumbers {
  requests: number;
  prompt_tokens: number;
  cached_tokens: number;
  completion_tokens: number;
  amount?: string | null;
}

export interface UsageGroup extends UsageNumbers {
  key: string;
  label: string;
}

export type UsageGroupBy = "deployment" | "key" | "day" | "hour" | "outcome";

export interface Usage {
  from: string;
  to: string;
  time_zone: string;
  as_of: string;
  behind_seconds: number | null;
  groups: UsageGroup[];
  totals: UsageNumbers;
  reconciles_with: { period: string; difference_micro: number } | null;
}

export interface UsageEvent {
  id: string;
  accepted_at: string;
  deployment: { id: string; name: string };
  key: { id: string; name: string };
  endpoint: string;
  stream: boolean;
  outcome: string;
  status: number;
  counted_by: string;
  prompt_tokens: number;
  cached_tokens: number;
  completion_tokens: number;
  reasoning_tokens: number;
  first_token_ms: number | null;
  duration_ms: number;
  amount?: string | null;
}

export interface StatementSummary {
  period: string;
  status: "open" | "closed";
  starts_at: string;
  ends_at: string;
  currency: string;
  total_micro: number;
  content_hash: string | null;
}

export interface StatementLine {
  id: string;
  deployment: { id: string; name: string };
  unit: "input_token" | "cached_token" | "output_token";
  price_version: number;
  unit_price: string;
  quantity: number;
  exact: string;
  amount_micro: number;
}

export interface Statement extends StatementSummary {
  lines: StatementLine[];
}

export interface CreateKey {
  name: string;
  kind?: "member" | "service";
  expires_at?: string;
  deployment_ids?: string[];
}
