import { describe, expect, it } from "vitest";
import { networksOf } from "@/features/keys/networks";

describe("a key's networks", () => {
  it("may be separated by anything, and be none", () => {
    const both = ["203.0.113.0/24", "2001:db8::/32"];
    for (const text of ["203.0.113.0/24, 2001:db8::/32", " 203.0.113.0/24\n2001:db8::/32 ", "203.0.113.0/24;2001:db8::/32,"]) expect(networksOf(text)).toEqual(both);
    for (const text of ["", "  ", ",\n"]) expect(networksOf(text)).toEqual([]);
  });
});
