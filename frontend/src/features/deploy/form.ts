/** The wizard's fields as typed, and what they mean. Pure, so that it can be tested without a page. */
import type { Deployment, DeploymentChange, DeployRequest, Needs, Pins, PlanRequest } from "@/shared/api/types";
import { ROLLING, type Takeover, toRollout, wrongIn } from "./takeover";

export const QUALITIES = ["any", "good", "high"] as const;
export type Quality = (typeof QUALITIES)[number];

export interface Draft {
  model: string;
  version: string; // "" = newest
  name: string; // "" = the server's suggestion, shown as placeholder
  context: string;
  concurrency: string;
  quality: Quality;
  speed: string;
  first: string; // milliseconds to the first token
  price: string;
  replicas: string;
  artefact: string;
  slots: string;
  takeover: Takeover; // of a change
  alone: boolean; // of an adapter: on replicas of its own, also where its base runs
}

export const EMPTY: Draft = { model: "", version: "", name: "", context: "", concurrency: "4", quality: "any", speed: "", first: "", price: "", replicas: "1", artefact: "", slots: "", takeover: ROLLING, alone: false };

export const LIMITS = {
  concurrency: { min: 1, max: 512 },
  speed: { min: 1, max: 100_000 },
  first: { min: 1, max: 3_600_000 },
  replicas: { min: 1, max: 16 },
  slots: { min: 1, max: 512 },
} as const;

export type FieldName = keyof typeof LIMITS | "name" | "price";
export type Problems = Partial<Record<FieldName, "number" | "price" | "name">> & { takeover?: NonNullable<ReturnType<typeof wrongIn>> };

const NAME = /^[a-z0-9][a-z0-9._-]{0,62}$/;
const PRICE = /^\d{1,9}(\.\d{1,12})?$/;

export function wholeNumber(text: string): number | null {
  return /^\d{1,9}$/.test(text.trim()) ? Number.parseInt(text, 10) : null;
}

export function check(draft: Draft): Problems {
  const problems: Problems = {};
  for (const field of ["concurrency", "speed", "first", "replicas", "slots"] as const) {
    const text = draft[field];
    if (text.trim() === "") continue;
    const value = wholeNumber(text);
    if (value === null || value < LIMITS[field].min || value > LIMITS[field].max) problems[field] = "number";
  }
  if (draft.price.trim() !== "" && !PRICE.test(draft.price.trim())) problems.price = "price";
  if (draft.name !== "" && !NAME.test(draft.name)) problems.name = "name";
  const takeover = wrongIn(draft.takeover);
  if (takeover !== null) problems.takeover = takeover;
  return problems;
}

/** The body for POST plans and POST deployments. Fields left empty are not sent: the planner then chooses. */
export function toRequest(draft: Draft): DeployRequest {
  const needs: Needs = {};
  const pins: Pins = {};
  const context = wholeNumber(draft.context);
  if (context !== null) needs.context_length = context;
  const concurrency = wholeNumber(draft.concurrency);
  if (concurrency !== null) needs.concurrency = concurrency;
  if (draft.quality !== "any") needs.quality = draft.quality;
  const speed = wholeNumber(draft.speed);
  if (speed !== null) needs.tokens_per_second = speed;
  const first = wholeNumber(draft.first);
  if (first !== null) needs.ttft_ms = first;
  if (draft.price.trim() !== "") needs.max_price_per_hour = draft.price.trim();
  if (draft.artefact !== "") pins.artefact_id = draft.artefact;
  const slots = wholeNumber(draft.slots);
  if (slots !== null) pins.slots = slots;
  const request: DeployRequest = { model: draft.model, needs };
  const version = wholeNumber(draft.version);
  if (version !== null) request.version = version;
  if (Object.keys(pins).length > 0) request.pins = pins;
  const replicas = wholeNumber(draft.replicas);
  if (replicas !== null) request.replicas = replicas;
  if (draft.name !== "") request.name = draft.name;
  if (draft.alone) request.beside = "";
  return request;
}

/** What a plan depends on; null while a field that it depends on means nothing. The deployment's name is no part of it. */
export function toPlanRequest(draft: Draft, kept: Kept = NOTHING_KEPT): PlanRequest | null {
  if (Object.keys(check({ ...draft, name: "", takeover: ROLLING })).length > 0) return null;
  const asked = toRequest(draft);
  delete asked.name;
  return { ...asked, needs: { ...kept.needs, ...asked.needs }, ...(asked.pins || hasAny(kept.pins) ? { pins: { ...kept.pins, ...asked.pins } } : {}) };
}

/** What a revision was asked for that the form has no field for. It stays as it is. */
export interface Kept {
  needs: Needs;
  pins: Pins;
}

const NOTHING_KEPT: Kept = { needs: {}, pins: {} };

function hasAny(part: object): boolean {
  return Object.keys(part).length > 0;
}

type Unchecked = Record<string, unknown>;
const text = (value: unknown): string => (typeof value === "number" || typeof value === "string" ? String(value) : "");

/** A deployment's present needs as a filled form, and beside it what the form does not show. */
export function fromRevision({ model, version, name, revision }: Pick<Deployment, "model" | "version" | "name" | "revision">): { draft: Draft; kept: Kept } {
  const needs: Unchecked = revision.needs;
  const pins: Unchecked = revision.pins;
  const draft: Draft = {
    model,
    version: String(version),
    name,
    context: text(needs["context_length"]),
    concurrency: text(needs["concurrency"]),
    quality: QUALITIES.find((each) => each === needs["quality"]) ?? "any",
    speed: text(fromChange({ field: "tokens_per_second", value: needs["tokens_per_second"] })?.speed),
    first: text(fromChange({ field: "ttft_ms", value: needs["ttft_ms"] })?.first),
    price: text(needs["max_price_per_hour"]),
    replicas: String(revision.replicas),
    artefact: text(pins["artefact_id"]),
    slots: text(pins["slots"]),
    takeover: ROLLING,
    alone: false,
  };
  const kept: Kept = { needs: {}, pins: {} };
  const { licences } = needs;
  if (Array.isArray(licences) && licences.length > 0) kept.needs.licences = licences.filter((each) => typeof each === "string");
  for (const field of ["engine", "tier"] as const) {
    const value = pins[field];
    if (typeof value === "string") kept.pins[field] = value;
  }
  if (typeof pins["context_length"] === "number") kept.pins.context_length = pins["context_length"];
  return { draft, kept };
}

/** The body for PATCH deployments. Needs and pins are replaced as a whole, so all of them are sent. */
export function toChange(draft: Draft, kept: Kept): DeploymentChange {
  const { needs, pins, replicas, version } = toRequest(draft);
  return { needs: { ...kept.needs, ...needs }, pins: { ...kept.pins, ...pins }, ...(replicas === undefined ? {} : { replicas }), ...(version === undefined ? {} : { version }), ...toRollout(draft.takeover) };
}

const FIELDS: Record<string, keyof Draft> = {
  context_length: "context",
  concurrency: "concurrency",
  slots: "slots",
  quality: "quality",
  max_price_per_hour: "price",
  tokens_per_second: "speed",
  ttft_ms: "first",
  artefact_id: "artefact",
};

/** A change that the planner suggests, as an edit of the form; null when the form has no such field. */
export function fromChange({ field, value }: Record<string, unknown>): Partial<Draft> | null {
  const name = typeof field === "string" ? FIELDS[field] : undefined;
  if (name === undefined) return null;
  if (value === null || value === undefined) return { [name]: "" };
  if (name === "quality") return { quality: QUALITIES.find((each) => each === value) ?? "any" };
  if (name === "speed" && typeof value === "number") return { speed: String(Math.max(1, Math.floor(value))) };
  if (name === "first" && typeof value === "number") return { first: String(Math.max(1, Math.ceil(value))) };
  return typeof value === "number" || typeof value === "string" ? { [name]: String(value) } : null;
}

/** Context lengths worth offering: powers of two up to what the model was trained for, and that itself. */
export function contextChoices(most: number | undefined, chosen: number | null = null): number[] {
  const choices: number[] = [];
  const limit = most ?? 131_072;
  for (let length = 1024; length < limit; length *= 2) choices.push(length);
  if (most !== undefined) choices.push(most);
  if (chosen !== null && !choices.includes(chosen)) choices.push(chosen);
  return choices.sort((a, b) => a - b);
}
