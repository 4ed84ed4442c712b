import { useI18n } from "@/shared/i18n";
import { Input, Select } from "@/shared/ui/Field";
import { Card } from "@/shared/ui/Page";
import type { Draft, Problems } from "./form";
import { STRATEGIES, type Takeover } from "./takeover";

/** How the changed deployment takes over from what runs. */
export function RolloutForm({ draft, problems, onChange }: { draft: Draft; problems: Problems; onChange: (change: Partial<Draft>) => void }) {
  const { t } = useI18n();
  const { takeover } = draft;
  const edit = (change: Partial<Takeover>) => onChange({ takeover: { ...takeover, ...change } });
  const wrong = problems.takeover ?? null;
  return (
    <Card title={t("takeover.title")}>
      <div className="stack">
        <Select label={t("takeover.strategy")} help={t(`takeover.${takeover.strategy}.help`)} value={takeover.strategy} onChange={(event) => edit({ strategy: STRATEGIES.find((each) => each === event.target.value) ?? "rolling" })}>
          {STRATEGIES.map((each) => (
            <option key={each} value={each}>{t(`takeover.${each}`)}</option>
          ))}
        </Select>
        {takeover.strategy === "canary" ? (
          <Input label={t("takeover.steps")} help={t("takeover.stepsHelp")} autoComplete="off" value={takeover.steps} error={wrong === "steps" ? t("takeover.stepsWrong") : null} onChange={(event) => edit({ steps: event.target.value })} />
        ) : null}
        {takeover.strategy === "shadow" ? (
          <Input label={t("takeover.percent")} inputMode="numeric" autoComplete="off" value={takeover.percent} error={wrong === "percent" ? t("deploy.invalidNumber", { min: 1, max: 100 }) : null} onChange={(event) => edit({ percent: event.target.value })} />
        ) : (
          <Input label={t("takeover.hold")} help={t("takeover.holdHelp")} inputMode="numeric" autoComplete="off" value={takeover.hold} error={wrong === "hold" ? t("deploy.invalidNumber", { min: 0, max: 604_800 }) : null} onChange={(event) => edit({ hold: event.target.value })} />
        )}
        <Select label={t("takeover.automatic")} value={takeover.automatic ? "yes" : "no"} onChange={(event) => edit({ automatic: event.target.value === "yes" })}>
          <option value="yes">{t("rollout.automatic")}</option>
          <option value="no">{t("rollout.byHand")}</option>
        </Select>
        <Input label={t("takeover.reason")} help={t("takeover.reasonHelp")} maxLength={200} value={takeover.reason} onChange={(event) => edit({ reason: event.target.value })} />
      </div>
    </Card>
  );
}
