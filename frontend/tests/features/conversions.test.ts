import { describe, expect, it } from "vitest";
import { formatsFor, TARGETS } from "@/features/models/conversionApi";

const artefact = (format: string, quantization: string) => ({ format, quantization });

describe("what a version's artefacts can be turned into", () => {
  it("is GGUF and safetensors for a GGUF file, however exact", () => {
    expect(formatsFor([artefact("gguf", "Q4_1")])).toEqual(["gguf", "safetensors"]);
  });
  it("is everything for plain safetensors", () => {
    expect(formatsFor([artefact("safetensors", "BF16")])).toEqual(["gguf", "safetensors", "onnx"]);
  });
  it("is nothing for what was quantized for one engine", () => {
    expect(formatsFor([artefact("safetensors", "FP8"), artefact("onnx", "INT4 W4A16")])).toEqual([]);
  });
  it("is the merged model for an adapter", () => {
    expect(formatsFor([artefact("lora", "BF16")])).toEqual(["safetensors"]);
  });
  it("names only what the server makes", () => {
    expect(Object.keys(TARGETS)).toEqual(["gguf", "safetensors", "onnx"]);
  });
});
