/** Whether a text is an amount that the API takes: plain decimals, at most 7 digits before the point and 12 after it. */
export function isAmount(text: string): boolean {
  return /^\d{1,7}(\.\d{1,12})?$/.test(text.trim());
}
