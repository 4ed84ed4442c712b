import { describe, expect, it } from "vitest";
import { EMPTY, NEW, suggestedName, toCredential, toRequest } from "@/features/models/form";
import { hex, partsToSend } from "@/features/models/upload";

describe("the import form", () => {
  it("suggests a name that is one", () => {
    expect(suggestedName("Qwen/Qwen3-0.6B")).toBe("qwen3-0.6b");
    expect(suggestedName("s3://bucket/My Models/Support v2/")).toBe("support-v2");
    expect(suggestedName("https://host/a/Model_X.Q4_K_M.gguf")).toBe("model_x.q4_k_m");
    expect(suggestedName("--x")).toBe("x");
  });

  it("sends what the source needs, and nothing of another", () => {
    const form = { ...EMPTY, name: " a ", repository: " org/m ", files: "*Q4*", uri: "s3://b/x", path: "/etc", base: "b", credential: "c" };
    expect(toRequest({ ...form, source: "hub" }, [], "c")).toEqual({ source: "hub", name: "a", repository: "org/m", files: "*Q4*", base: "b", credential: "c" });
    expect(toRequest({ ...form, source: "s3" }, [], "c")).toEqual({ source: "s3", name: "a", uri: "s3://b/x", files: "*Q4*", base: "b", credential: "c" });
    expect(toRequest({ ...form, source: "url", urls: "https://h/a.gguf\n https://h/b.gguf \n" }, [], "")).toEqual({ source: "url", name: "a", base: "b", urls: ["https://h/a.gguf", "https://h/b.gguf"] });
    expect(toRequest({ ...form, source: "upload" }, [new File(["abc"], "m.gguf")], "c")).toEqual({ source: "upload", name: "a", base: "b", upload: [{ name: "m.gguf", size: 3 }] });
  });

  it("makes a credential only when asked to", () => {
    expect(toCredential({ ...EMPTY, credential: "known" })).toBeNull();
    expect(toCredential({ ...EMPTY, source: "path", credential: NEW })).toBeNull();
    expect(toCredential({ ...EMPTY, source: "s3", credential: NEW, credentialName: "n", keyId: "k", secret: "s" })).toEqual({ name: "n", kind: "s3", secret: "s", key_id: "k" });
    expect(toCredential({ ...EMPTY, source: "url", credential: NEW, credentialName: "n", secret: "s", host: "h" })).toEqual({ name: "n", kind: "bearer", secret: "s", host: "h" });
  });
});

describe("an upload", () => {
  const detail = {
    files: [{ name: "a", size: 3, sha256: "", done: 0 }, { name: "b", size: 2, sha256: "", done: 0 }],
    missing: [{ name: "a", parts: [0, 2] }, { name: "b", parts: [] }],
  };

  it("sends what is missing", () => {
    const files = [new File(["abc"], "a"), new File(["de"], "b")];
    expect(partsToSend(detail, files)?.map(({ file, number }) => [file.name, number])).toEqual([["a", 0], ["a", 2]]);
  });

  it("notices other files", () => {
    expect(partsToSend(detail, [new File(["abc"], "a")])).toBeNull();
    expect(partsToSend(detail, [new File(["abcd"], "a"), new File(["de"], "b")])).toBeNull();
  });

  it("writes digests in hexadecimal", () => {
    expect(hex(new Uint8Array([0, 15, 255]).buffer)).toBe("000fff");
  });
});
