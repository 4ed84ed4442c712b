import { useQuery } from "@tanstack/react-query";
import { api } from "@/shared/api/api";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Icon } from "@/shared/ui/Icon";

const ASK_MS = 300;
const GIVE_UP = 200; // questions; a gateway that is silent for a minute is named and no longer waited for

/** How far a change has come: what gateways themselves report, not a guess. */
export function Spread({ change, done }: { change: number; done: "keys.activeOn" | "keys.revokedOn" }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const progress = useQuery({
    queryKey: ["changes", slug, change],
    queryFn: () => api.change(slug, change),
    refetchInterval: ({ state }) => (state.data && state.data.total > 0 && state.data.applied >= state.data.total ? false : state.dataUpdateCount > GIVE_UP ? false : ASK_MS),
    staleTime: Infinity,
  });
  const data = progress.data;
  if (!data) return null;
  const { applied, total, missing } = data;
  if (total === 0) return <span className="small muted" role="status">{t("keys.noGateways")}</span>;
  const whole = applied >= total;
  return (
    <span className="small num" role="status">
      <span className="nowrap">
        <Icon name={whole ? "check" : "spinner"} tone={whole ? "ok" : "info"} />{" "}
        {whole ? t(done, { applied, total }) : t("keys.spreading", { applied, total })}
      </span>
      {!whole && missing.length > 0 ? <span className="tone-warn">{t("keys.missing", { names: missing.join(", ") })}</span> : null}
    </span>
  );
}
