import { describe, expect, it } from "vitest";
import { SseParser } from "@/features/playground/sse";

const STREAM = 'data: {"a":"héllo 世界 🚢"}\n\n: comment\n\ndata: one\r\ndata: two\r\n\r\nevent: x\ndata:three\n\ndata\n\ndata: [DONE]\n\ndata: cut';
const EVENTS = ['{"a":"héllo 世界 🚢"}', "one\ntwo", "three", "", "[DONE]"];
const bytes = new TextEncoder().encode(STREAM);

function parse(pieces: Uint8Array[]): string[] {
  const parser = new SseParser();
  return [...pieces.flatMap((piece) => parser.push(piece)), ...parser.end()];
}

describe("server-sent events", () => {
  it("are the same for every split in two, also inside characters and line ends", () => {
    for (let cut = 0; cut <= bytes.length; cut += 1) expect(parse([bytes.slice(0, cut), bytes.slice(cut)]), `cut at ${cut}`).toEqual(EVENTS);
  });

  it("are the same byte by byte", () => {
    expect(parse([...bytes].map((byte) => Uint8Array.of(byte)))).toEqual(EVENTS);
  });

  it("come as soon as they are complete", () => {
    const parser = new SseParser();
    expect(parser.push(new TextEncoder().encode("data: a\n"))).toEqual([]);
    expect(parser.push(new TextEncoder().encode("\n"))).toEqual(["a"]);
  });

  it("may end lines with CR alone", () => {
    expect(parse([new TextEncoder().encode("data: a\rdata: b\r\rdata: c\r\r")])).toEqual(["a\nb", "c"]);
  });
});
