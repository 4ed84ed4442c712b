import { describe, expect, it } from "vitest";
import { exactMoney, microToDecimal, parseDecimal, perMillion, rescale, statementMoney, sumDecimals, tileMoney } from "@/shared/format/money";

describe("money", () => {
  it("keeps every place of an amount far beyond what a float can hold", () => {
    expect(exactMoney("90071992547409931234.000000150001", "USD")).toBe("US$90,071,992,547,409,931,234.000000150001");
    expect(exactMoney("0.000000150000", "USD")).toBe("US$0.00000015");
    expect(exactMoney("2.000000000000", "USD")).toBe("US$2.00");
  });

  it("shows statements with six decimals always", () => {
    expect(statementMoney(1_204_118_392, "USD")).toBe("US$1,204.118392");
    expect(statementMoney(0, "USD")).toBe("US$0.000000");
    expect(statementMoney(-1, "USD")).toBe("−US$0.000001");
  });

  it("shows tiles with two decimals from one upwards and up to six below", () => {
    expect(tileMoney("1204.118392000000", "USD")).toBe("US$1,204.12");
    expect(tileMoney("0.001234567000", "USD")).toBe("US$0.001235");
    expect(tileMoney("0.000000150000", "USD")).toBe("< US$0.000001");
    expect(tileMoney("0.000000000000", "USD")).toBe("US$0.00");
  });

  it("moves the point for prices per million", () => {
    expect(perMillion("0.000000150000", "USD")).toBe("US$0.15");
    expect(perMillion("0.000000000001", "USD")).toBe("US$0.000001");
  });

  it("rounds half to even, once", () => {
    expect(rescale(parseDecimal("0.0000005"), 6).units).toBe(0n);
    expect(rescale(parseDecimal("0.0000015"), 6).units).toBe(2n);
    expect(rescale(parseDecimal("-0.0000025"), 6).units).toBe(-2n);
    expect(rescale(parseDecimal("0.00000050001"), 6).units).toBe(1n);
  });

  it("sums exactly where floats would not", () => {
    expect(sumDecimals(["0.1", "0.2", "0.000000000001"])).toBe("0.300000000001");
    expect(microToDecimal(-1_500_000)).toBe("-1.500000");
  });

  it("refuses what is no plain decimal", () => {
    for (const text of ["", "1e3", "NaN", "1,000", "0x10", "-"]) expect(() => parseDecimal(text)).toThrow(RangeError);
  });

  it("knows no currency sign and says the code", () => {
    expect(exactMoney("1", "CHF")).toBe("CHF 1.00");
  });
});
