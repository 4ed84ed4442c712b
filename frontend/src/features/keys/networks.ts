/** Networks as people type them: separated by commas, blanks or line breaks. The API judges what is one. */
export function networksOf(text: string): string[] {
  return text.split(/[\s,;]+/).filter((each) => each !== "");
}
