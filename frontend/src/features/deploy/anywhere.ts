/** "What would it take": the fields as typed, and the demand they mean. Pure. */
import { wholeNumber } from "./form";

export interface People {
  users: string;
  think: string; // seconds between an answer and the next question
  reply: string; // tokens
  first: string; // ms to the first token
}

export const PEOPLE: People = { users: "50", think: "30", reply: "256", first: "1000" };

export const PEOPLE_LIMITS = {
  users: { min: 1, max: 1_000_000 },
  think: { min: 0, max: 86_400 },
  reply: { min: 1, max: 100_000 },
  first: { min: 1, max: 600_000 },
} as const;

export const PEOPLE_FIELDS = ["users", "think", "reply", "first"] as const;

export function wrongFields(people: People): (keyof People)[] {
  return PEOPLE_FIELDS.filter((field) => {
    const value = wholeNumber(people[field]);
    return value === null || value < PEOPLE_LIMITS[field].min || value > PEOPLE_LIMITS[field].max;
  });
}

/** Only for people without wrong fields. */
export function toDemand(people: People): Record<string, number> {
  return {
    users: wholeNumber(people.users) ?? 1,
    think_seconds: wholeNumber(people.think) ?? 0,
    reply_tokens: wholeNumber(people.reply) ?? 1,
    ttft_ms: wholeNumber(people.first) ?? 1,
  };
}
