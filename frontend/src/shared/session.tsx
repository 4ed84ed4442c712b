import { useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { createContext, type ReactNode, useContext } from "react";
import { api } from "./api/api";
import { keys } from "./api/cache";
import { ApiError } from "./api/client";
import type { Action, Me, Membership } from "./api/types";
import { useI18n } from "./i18n";
import { Page } from "./ui/Page";
import { Notice } from "./ui/Notice";

/** Who is signed in; null when nobody is. */
export function useMe(): UseQueryResult<Me | null> {
  return useQuery({
    queryKey: keys.me,
    queryFn: async () => {
      try {
        return await api.me();
      } catch (error) {
        if (error instanceof ApiError && error.signedOut) return null;
        throw error;
      }
    },
    staleTime: 60_000,
  });
}

/** Signs out and forgets everything that was shown. */
export function useSignOut(): () => Promise<void> {
  const client = useQueryClient();
  return async () => {
    try {
      await api.signOut();
    } catch (error) {
      // allauth answers 401 when the session is gone, which is what was wanted.
      if (!(error instanceof ApiError && error.signedOut)) throw error;
    }
    client.setQueryData(keys.me, null); // the sign-in page takes over; what the pages before it knew is dropped
    client.removeQueries({ predicate: ({ queryKey }) => queryKey[0] !== keys.me[0] });
  };
}

interface Org {
  me: Me;
  org: Membership["org"];
  role: Membership["role"];
  slug: string;
  can: (action: Action) => boolean;
}

const Context = createContext<Org | null>(null);

export function OrgProvider({ me, membership, children }: { me: Me; membership: Membership; children: ReactNode }) {
  const value: Org = {
    me,
    org: membership.org,
    role: membership.role,
    slug: membership.org.slug,
    can: (action) => membership.permissions.includes(action),
  };
  return <Context.Provider value={value}>{children}</Context.Provider>;
}

export function useOrg(): Org {
  const value = useContext(Context);
  if (value === null) throw new Error("useOrg needs an OrgProvider");
  return value;
}

/** Shows the page only to those who may; others read which permission is missing. */
export function Requires({ action, children }: { action: Action; children: ReactNode }) {
  const { can, org } = useOrg();
  const { t } = useI18n();
  if (can(action)) return children;
  return (
    <Page title={t("denied.title")} scope={org.name}>
      <Notice tone="warn">{t("denied.text", { action, org: org.name })}</Notice>
    </Page>
  );
}
