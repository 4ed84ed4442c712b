/** Calls about imports, credentials of sources, the library and storage. */
import { request } from "@/shared/api/client";
import type { components } from "@/shared/api/schema";
import type { Page } from "@/shared/api/types";

type Schemas = components["schemas"];
/** Answers carry every field; the schema calls those optional that have a default in the database. */
export type Import = Required<Schemas["ImportOut"]>;
export type ImportDetail = Required<Schemas["ImportDetailOut"]>;
export type NewImport = Schemas["NewImportInRequest"];
export type Source = Schemas["ImportSourceEnum"];
export type Credential = Schemas["CredentialOut"];
export type NewCredential = Schemas["NewCredentialInRequest"];
export type LibraryModel = Schemas["LibraryModelOut"];
export type Storage = Schemas["StorageOut"];

const org = (slug: string, rest: string) => `/orgs/${encodeURIComponent(slug)}${rest}`;

export const importApi = {
  list: (slug: string) => request<Page<Import>>("GET", org(slug, "/imports"), { query: { limit: 20 } }),
  get: (slug: string, id: string) => request<ImportDetail>("GET", org(slug, `/imports/${id}`)),
  start: (slug: string, body: NewImport, idempotencyKey: string) => request<ImportDetail>("POST", org(slug, "/imports"), { body, idempotencyKey }),
  cancel: (slug: string, id: string) => request<Import>("POST", org(slug, `/imports/${id}/cancel`), { body: {} }),
  credentials: (slug: string) => request<Page<Credential>>("GET", org(slug, "/source-credentials"), { query: { limit: 200 } }),
  addCredential: (slug: string, body: NewCredential, idempotencyKey: string) =>
    request<Credential>("POST", org(slug, "/source-credentials"), { body, idempotencyKey }),
  library: () => request<LibraryModel[]>("GET", "/library"),
  storage: (slug: string) => request<Storage>("GET", org(slug, "/storage")),
  deleteVersion: (slug: string, name: string, number: number) =>
    request<unknown>("DELETE", org(slug, `/models/${encodeURIComponent(name)}/versions/${number}`)),
};

export const importKeys = {
  imports: (slug: string) => ["models", slug, "imports"] as const,
  storage: (slug: string) => ["models", slug, "storage"] as const,
  credentials: (slug: string) => ["credentials", slug] as const,
  library: ["library"] as const,
};

export const OVER: readonly string[] = ["done", "failed", "cancelled"];
