import { useInfiniteQuery } from "@tanstack/react-query";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { Deployment, DeploymentEvent } from "@/shared/api/types";
import { dateTime } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { usePolling } from "@/shared/live/LiveProvider";
import { useOrg } from "@/shared/session";
import { Empty } from "@/shared/ui/Page";
import { Paged } from "@/shared/ui/Paged";
import { useCause } from "./cause";
import { shortName } from "./Timeline";

export function EventsTab({ deployment }: { deployment: Deployment }) {
  const { t, locale } = useI18n();
  const { slug } = useOrg();
  const say = useEventText();
  const events = useInfiniteQuery({
    queryKey: keys.deploymentEvents(slug, deployment.name),
    queryFn: ({ pageParam }) => api.deploymentEvents(slug, deployment.name, pageParam),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    refetchInterval: usePolling(),
  });
  return (
    <Paged
      query={events}
      caption={t("deployment.tab.events")}
      empty={<Empty text={t("deployment.events.empty")} />}
      rowKey={(each) => each.id}
      columns={[
        { head: t("deployment.event"), cell: say },
        { head: t("deployment.who"), cell: (each) => (each.actor ? each.actor.name || each.actor.email : t("deployment.byBerth")) },
        { head: t("deployment.when"), cell: (each) => dateTime(each.at, locale) },
      ]}
    />
  );
}

function useEventText(): (event: DeploymentEvent) => string {
  const { lookup } = useI18n();
  const cause = useCause();
  return ({ kind, data }) => {
    const values: Record<string, string | number> = {};
    for (const [name, value] of Object.entries(data)) {
      if (typeof value !== "string" && typeof value !== "number") continue;
      values[name] = name === "replica" ? shortName(String(value)) : (lookup(`state.${value}`) ?? lookup(`phase.${value}`) ?? value);
    }
    const text = lookup(`event.${kind}`, values) ?? kind;
    const { reason, message } = data;
    return typeof reason === "string" && reason !== "" ? `${text} · ${cause(reason, typeof message === "string" ? message : "")}` : text;
  };
}
