/** Sends a model's files in parts, several at a time, each with its SHA-256. What has arrived is never sent again. */
import { ApiError, csrfToken, request, toError, url } from "@/shared/api/client";
import type { ImportDetail } from "./importApi";

const AT_ONCE = 3;
const TRIES = 5;

export interface Part {
  file: File;
  number: number;
}

/** The parts that are missing. Null when the files chosen are not those of the import. */
export function partsToSend(detail: Pick<ImportDetail, "files" | "missing">, files: readonly File[]): Part[] | null {
  const byName = new Map(files.map((file) => [file.name, file]));
  if (detail.files.some((each) => byName.get(each.name)?.size !== each.size)) return null;
  return detail.missing.flatMap(({ name, parts }) => {
    const file = byName.get(name);
    return file === undefined ? [] : parts.map((number) => ({ file, number }));
  });
}

/** Resolves when all is there; rejects with the first failure that trying again does not mend. */
export async function sendParts(slug: string, detail: ImportDetail, files: readonly File[], signal: AbortSignal): Promise<boolean> {
  const parts = partsToSend(detail, files);
  if (parts === null) return false;
  let next = 0;
  const worker = async () => {
    while (next < parts.length) {
      signal.throwIfAborted();
      const part = parts[next++];
      if (part !== undefined) await sendPart(slug, detail, part, signal);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  return true;
}

async function sendPart(slug: string, detail: ImportDetail, part: Part, signal: AbortSignal): Promise<void> {
  const content = await part.file.slice(part.number * detail.part_bytes, (part.number + 1) * detail.part_bytes).arrayBuffer();
  const sha256 = hex(await crypto.subtle.digest("SHA-256", content));
  const address = url(`/orgs/${encodeURIComponent(slug)}/imports/${detail.id}/files/${encodeURIComponent(part.file.name)}/parts/${part.number}`);
  for (let attempt = 1; ; attempt += 1) {
    try {
      await put(address, content, sha256, signal);
      return;
    } catch (error) {
      if (signal.aborted || attempt >= TRIES || !(error instanceof ApiError) || !(error.retryable || error.code === "csrf_failed")) throw error;
      if (error.code === "csrf_failed") await request("GET", "/csrf");
      await new Promise((resolve) => setTimeout(resolve, (error.retryAfter ?? 2 ** attempt) * 1000));
    }
  }
}

async function put(address: string, body: ArrayBuffer, sha256: string, signal: AbortSignal): Promise<void> {
  const headers = { "Content-Type": "application/octet-stream", "X-Part-SHA256": sha256, "X-CSRFToken": csrfToken(document.cookie) ?? "" };
  let response: Response;
  try {
    response = await fetch(address, { method: "PUT", body, headers, signal, credentials: "same-origin" });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError("network", "Berth cannot be reached. Check your connection; nothing was lost.", 0);
  }
  if (!response.ok) throw await toError(response);
}

export function hex(digest: ArrayBuffer): string {
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

