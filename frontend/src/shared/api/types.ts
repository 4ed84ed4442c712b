/**
 * The management API's shapes under the names that features use, from the generated schema (`npm run types`).
 * Instants are ISO 8601 in UTC; money is exact: decimal strings or integer micro-units.
 */
import type { components, operations } from "./schema";

type Schemas = components["schemas"];

/** Answers carry every field; the schema calls those optional that have a default in the database. */
type Whole<T> = T extends readonly (infer U)[] ? Whole<U>[] : T extends object ? { -readonly [K in keyof T]-?: Whole<T[K]> } : T;

export interface Page<T> {
  items: T[];
  next: string | null;
}

export type Action = Schemas["PermissionsEnum"];
export type Role = Schemas["RoleEnum"];
export type Me = Whole<Schemas["MeOut"]>;
export type Membership = Whole<Schemas["MembershipOut"]>;
export type Organisation = Whole<Schemas["OrgOut"]>;
export type Member = Whole<Schemas["MemberOut"]>;
export type Invitation = Whole<Schemas["InvitationOut"]>;
export type IssuedInvitation = Whole<Schemas["IssuedInvitationOut"]>;
export type Accepted = Whole<Schemas["AcceptedOut"]>;

export type ApiKey = Whole<Schemas["KeyOut"]>;
export type ChangedKey = Whole<Schemas["ChangedKeyOut"]>;
export type IssuedKey = Whole<Schemas["NewKeyOut"]>;
export type CreateKey = Partial<Schemas["NewKeyInRequest"]> & { name: string };
export type PlaygroundKey = Schemas["PlaygroundKeyOut"];
export type ChangeProgress = Schemas["ChangeOut"];

export type Budget = Whole<Schemas["BudgetOut"]>;
export type BudgetScope = Schemas["ScopeEnum"];
export type BudgetPeriod = Schemas["PeriodEnum"];
export type NewBudget = Schemas["BudgetInRequest"];

export type Model = Whole<Schemas["ModelOut"]>;
export type ModelVersion = Whole<Schemas["ModelVersionOut"]>;

export type Needs = Schemas["NeedsInRequest"];
export type Pins = Schemas["PinsInRequest"];
export type PlanRequest = Schemas["PlanInRequest"];
export type DeployRequest = Schemas["DeployInRequest"];
export type Plan = Whole<Schemas["ProposalOut"]>;
export type SurveyRequest = Schemas["SurveyInRequest"];
export type Survey = Whole<Schemas["SurveyOut"]>;
export type Alternative = Survey["alternatives"][number];
export type PlanChoice = NonNullable<Plan["choice"]>;
export type PlanMessage = Schemas["PlanMessageOut"];
export type PlanMemory = Schemas["MemoryOut"];
export type Rejected = Schemas["RejectedOut"];
export type Estimate = Schemas["EstimateOut"];

export type Deployment = Whole<Schemas["DeploymentOut"]>;
export type BetterPlan = Whole<Schemas["BetterPlanOut"]>;
export type DeploymentState = Schemas["DeploymentStateEnum"];
export type DeploymentChange = Schemas["ChangeInRequest"];
export type Replica = Whole<Schemas["ReplicaOut"]>;
export type Revision = Whole<Schemas["RevisionOut"]>;
export type Rollout = Whole<Schemas["RolloutOut"]>;
export type DeploymentScaling = Whole<Schemas["ScalingOut"]>;
export type ScalingChange = Partial<Schemas["ScalingInRequest"]>;
export type NewPeak = Partial<Schemas["PeakInRequest"]> & Pick<Schemas["PeakInRequest"], "start" | "end">;
export type DeploymentStatus = Whole<Schemas["StatusOut"]>;
export type DeploymentEvent = Whole<Schemas["EventOut"]>;
export type LogLine = Schemas["LogLineOut"];
export type LogPage = Schemas["LogPageOut"];

export type Usage = Schemas["UsageOut"];
export type UsageNumbers = Schemas["SumsOut"];
export type UsageGroup = Schemas["UsageGroupOut"];
export type UsageGroupBy = NonNullable<NonNullable<operations["usage_read"]["parameters"]["query"]>["group_by"]>;
export type UsageEvent = Schemas["UsageEventOut"];
export type LineEvent = Schemas["LineEventOut"];
export type StatementSummary = Schemas["StatementOut"];
export type Statement = Schemas["StatementDetailOut"];
export type StatementLine = Schemas["StatementLineOut"];
