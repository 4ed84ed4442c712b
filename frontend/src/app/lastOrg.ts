import type { Me, Membership } from "@/shared/api/types";

const STORED = "berth.org";

/** The organisation that was open last in this browser, else the first one. */
export function homeOf(me: Me): Membership | undefined {
  const last = read();
  return me.memberships.find(({ org }) => org.slug === last) ?? me.memberships[0];
}

export function remember(slug: string): void {
  try {
    localStorage.setItem(STORED, slug);
  } catch {
    // Storage can be forbidden; the first organisation is then home.
  }
}

function read(): string | null {
  try {
    return localStorage.getItem(STORED);
  } catch {
    return null;
  }
}
