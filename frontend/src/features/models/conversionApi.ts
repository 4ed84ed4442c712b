/** Calls about artefacts that are made of others. */
import { request } from "@/shared/api/client";
import type { components } from "@/shared/api/schema";
import type { Page } from "@/shared/api/types";

type Schemas = components["schemas"];
/** Answers carry every field; the schema calls those optional that have a default in the database. */
export type Conversion = Required<Schemas["ConversionOut"]>;
export type NewConversion = Schemas["NewConversionInRequest"];

const org = (slug: string, rest: string) => `/orgs/${encodeURIComponent(slug)}${rest}`;

export const conversionApi = {
  list: (slug: string) => request<Page<Conversion>>("GET", org(slug, "/conversions"), { query: { limit: 50 } }),
  start: (slug: string, model: string, version: number, body: NewConversion, idempotencyKey: string) =>
    request<Conversion>("POST", org(slug, `/models/${encodeURIComponent(model)}/versions/${version}/conversions`), { body, idempotencyKey }),
  cancel: (slug: string, id: string) => request<Conversion>("DELETE", org(slug, `/conversions/${id}`)),
};

export const conversionKey = (slug: string) => ["models", slug, "conversions"] as const;

export const ENDED: readonly string[] = ["done", "failed", "refused", "cancelled"];

/** What can be asked for, by format, from the most exact to the smallest: the server's own list. */
export const TARGETS: Record<string, readonly string[]> = {
  gguf: ["F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q3_K_M", "Q2_K"],
  safetensors: ["BF16", "FP8", "INT8 W8A8", "INT4 W4A16", "AWQ-INT4"],
  onnx: ["F16", "INT4 W4A16"],
};

/** Formats that this version's artefacts can be turned into. */
export function formatsFor(artefacts: readonly { format: string; quantization: string }[]): string[] {
  const plain = artefacts.some((each) => each.format === "safetensors" && ["F32", "F16", "BF16"].includes(each.quantization));
  const gguf = artefacts.some((each) => each.format === "gguf");
  const adapter = artefacts.some((each) => each.format === "lora");
  const found = [];
  if (gguf || plain) found.push("gguf");
  if (gguf || plain || adapter) found.push("safetensors");
  if (plain) found.push("onnx");
  return found;
}
