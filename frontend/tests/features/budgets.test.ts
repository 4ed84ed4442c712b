import { describe, expect, it } from "vitest";
import { isAmount } from "@/features/budgets/amount";

describe("a budget's amount", () => {
  it("is a plain decimal that the API takes", () => {
    for (const text of ["0", "20", " 0.50 ", "1234567.000000000001"]) expect(isAmount(text), text).toBe(true);
    for (const text of ["", "-1", "1e3", ".5", "1,000", "12345678", "0.0000000000001", "US$20"]) expect(isAmount(text), text).toBe(false);
  });
});
