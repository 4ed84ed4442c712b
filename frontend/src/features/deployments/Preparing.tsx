import type { DeploymentStatus } from "@/shared/api/types";
import { duration } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";
import { Notice } from "@/shared/ui/Notice";
import { useCause } from "./cause";

/** The files that are made before it can run with them: the step, how far it is, and what was passed over. */
export function Preparing({ preparation }: { preparation: NonNullable<DeploymentStatus["preparation"]> }) {
  const { t } = useI18n();
  const cause = useCause();
  const { quantization, step, percent, passed } = preparation;
  const failed = preparation.state === "failed";
  const says = t(`prepare.step.${step}`, { quantization });
  return (
    <Notice tone={failed ? "warn" : "info"} title={failed ? t("prepare.failed") : t("prepare.title")}>
      <p role="status">
        {failed ? cause(preparation.code, preparation.message) : says}
        {percent === null ? null : (
          <>
            {` ${percent} % `}
            <meter min={0} max={100} value={percent} aria-label={says} />
          </>
        )}
        {preparation.seconds_left === null ? "" : ` · ${t("prepare.left", { duration: duration(preparation.seconds_left * 1000) })}`}
      </p>
      {passed.length > 0 ? (
        <ul>
          {passed.map((each) => (
            <li key={each.quantization}>{t("prepare.passed", { quantization: each.quantization, why: cause(each.reason, each.message) })}</li>
          ))}
        </ul>
      ) : null}
    </Notice>
  );
}
