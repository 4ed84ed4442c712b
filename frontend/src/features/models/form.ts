/** What the import form says, and the request it means. */
import type { NewCredential, NewImport, Source } from "./importApi";

export interface ImportForm {
  source: Source;
  name: string;
  repository: string;
  revision: string;
  files: string;
  endpoint: string;
  uri: string;
  urls: string;
  path: string;
  base: string;
  licence: string;
  credential: string; // a name; "" none; NEW: the fields below
  credentialName: string;
  keyId: string;
  secret: string;
  credentialEndpoint: string;
  region: string;
  host: string;
}

export const NEW = "\n"; // no credential can be called so
export const EMPTY: ImportForm = {
  source: "hub", name: "", repository: "", revision: "", files: "", endpoint: "", uri: "", urls: "", path: "", base: "", licence: "",
  credential: "", credentialName: "", keyId: "", secret: "", credentialEndpoint: "", region: "", host: "",
};
export const KIND = { hub: "hub", s3: "s3", url: "bearer" } as const;

export function suggestedName(text: string): string {
  const last = text.trim().replace(/\/+$/, "").split("/").pop() ?? "";
  const plain = last.toLowerCase().replace(/\.(gguf|safetensors)$/, "").replace(/[^a-z0-9._-]+/g, "-");
  return plain.replace(/^[^a-z0-9]+/, "").slice(0, 63);
}

/** Empty fields are not sent. */
export function toRequest(form: ImportForm, files: readonly File[], credential: string): NewImport {
  const body: NewImport = { source: form.source, name: form.name.trim() };
  if (form.licence.trim()) body.licence = form.licence.trim();
  if (form.base) body.base = form.base;
  if (credential && form.source in KIND) body.credential = credential;
  if (form.source !== "upload" && form.source !== "url" && form.files.trim()) body.files = form.files.trim();
  switch (form.source) {
    case "hub":
      body.repository = form.repository.trim();
      if (form.revision.trim()) body.revision = form.revision.trim();
      if (form.endpoint.trim()) body.endpoint = form.endpoint.trim();
      break;
    case "s3":
      body.uri = form.uri.trim();
      break;
    case "url":
      body.urls = form.urls.split(/\s+/).filter(Boolean);
      break;
    case "path":
      body.path = form.path.trim();
      break;
    case "upload":
      body.upload = files.map((file) => ({ name: file.name, size: file.size }));
  }
  return body;
}

export function toCredential(form: ImportForm): NewCredential | null {
  if (form.credential !== NEW || !(form.source in KIND)) return null;
  const kind = KIND[form.source as keyof typeof KIND];
  const body: NewCredential = { name: form.credentialName.trim(), kind, secret: form.secret.trim() };
  if (kind === "s3") body.key_id = form.keyId.trim();
  if (kind === "s3" && form.region.trim()) body.region = form.region.trim();
  if (kind === "s3" && form.credentialEndpoint.trim()) body.endpoint = form.credentialEndpoint.trim();
  if (kind === "hub" && form.endpoint.trim()) body.endpoint = form.endpoint.trim();
  if (kind === "bearer") body.host = form.host.trim();
  return body;
}
