/** Money without floats: decimal strings and micro-units become BigInt and stay so until they are text. */

const MICRO = 6;

interface Exact {
  units: bigint; // value × 10^scale
  scale: number;
}

/** "0.000000150000" → exact. Throws on anything that is not a plain decimal. */
export function parseDecimal(text: string): Exact {
  const match = /^(-?)(\d+)(?:\.(\d*))?$/.exec(text.trim());
  if (match === null) throw new RangeError("not a decimal amount");
  const [, sign = "", whole = "0", fraction = ""] = match;
  const units = BigInt(whole + fraction);
  return { units: sign === "-" ? -units : units, scale: fraction.length };
}

/** Half to even, as statements are rounded. */
export function rescale(value: Exact, scale: number): Exact {
  if (scale >= value.scale) return { units: value.units * 10n ** BigInt(scale - value.scale), scale };
  const divisor = 10n ** BigInt(value.scale - scale);
  const negative = value.units < 0n;
  const magnitude = negative ? -value.units : value.units;
  let quotient = magnitude / divisor;
  const twice = (magnitude % divisor) * 2n;
  if (twice > divisor || (twice === divisor && quotient % 2n === 1n)) quotient += 1n;
  return { units: negative ? -quotient : quotient, scale };
}

function digits(value: Exact, minimumFraction: number): string {
  const negative = value.units < 0n;
  const all = (negative ? -value.units : value.units).toString().padStart(value.scale + 1, "0");
  const cut = all.length - value.scale;
  const whole = all.slice(0, cut).replace(/\B(?=(\d{3})+$)/g, ",");
  let fraction = all.slice(cut);
  while (fraction.length > minimumFraction && fraction.endsWith("0")) fraction = fraction.slice(0, -1);
  return (negative ? "−" : "") + whole + (fraction === "" ? "" : `.${fraction}`);
}

const SYMBOLS: Record<string, string> = { USD: "US$", EUR: "€", CNY: "CN¥", GBP: "£" };

function withCurrency(text: string, currency: string): string {
  const symbol = SYMBOLS[currency] ?? `${currency} `;
  return text.startsWith("−") ? `−${symbol}${text.slice(1)}` : symbol + text;
}

/** Micro-units as statements show them: always six decimals. */
export function statementMoney(micro: number | bigint, currency: string): string {
  return withCurrency(digits({ units: BigInt(micro), scale: MICRO }, MICRO), currency);
}

/** For tiles: two decimals from 1 upwards, up to six below. */
export function tileMoney(amount: string, currency: string): string {
  const exact = parseDecimal(amount);
  const one = 10n ** BigInt(exact.scale);
  const magnitude = exact.units < 0n ? -exact.units : exact.units;
  const shown = magnitude >= one ? rescale(exact, 2) : rescale(exact, MICRO);
  if (shown.units === 0n && exact.units !== 0n) return `< ${withCurrency("0.000001", currency)}`;
  return withCurrency(digits(shown, 2), currency);
}

/** Every place that the amount has, none invented. */
export function exactMoney(amount: string, currency: string): string {
  const exact = parseDecimal(amount);
  return withCurrency(digits(rescale(exact, Math.max(exact.scale, 2)), 2), currency);
}

export function microToDecimal(micro: number): string {
  const text = digits({ units: BigInt(micro), scale: MICRO }, MICRO).replaceAll(",", "").replace("−", "-");
  return text;
}

/** A price per token as a price per million tokens: the same digits, the point moved. */
export function perMillion(unitPrice: string, currency: string): string {
  const { units, scale } = parseDecimal(unitPrice);
  return withCurrency(digits(rescale({ units: units * 1_000_000n, scale }, Math.max(scale, 2)), 2), currency);
}

/** Sum of exact amounts, as a decimal string. */
export function sumDecimals(amounts: readonly string[]): string {
  let total: Exact = { units: 0n, scale: 12 };
  for (const amount of amounts) {
    const value = parseDecimal(amount);
    const scale = Math.max(total.scale, value.scale);
    total = { units: rescale(total, scale).units + rescale(value, scale).units, scale };
  }
  return digits(total, total.scale).replaceAll(",", "").replace("−", "-");
}
