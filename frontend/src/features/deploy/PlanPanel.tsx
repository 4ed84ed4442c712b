import type { Estimate, Plan, PlanChoice, PlanMemory, Rejected } from "@/shared/api/types";
import { exactMoney } from "@/shared/format/money";
import { bytes, duration, rough } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { Notice } from "@/shared/ui/Notice";
import { Card } from "@/shared/ui/Page";
import { Badge } from "@/shared/ui/Status";
import { Facts, Table } from "@/shared/ui/Table";
import { type Draft, fromChange } from "./form";
import { usePlanText } from "./planText";

export function PlanPanel({ plan, busy, broken, onApply }: { plan: Plan | undefined; busy: boolean; broken: boolean; onApply: (change: Partial<Draft>) => void }) {
  const { t } = useI18n();
  const { me } = useOrg();
  const say = usePlanText(me.currency);
  const status = broken ? <Badge tone="warn" icon="alert">{t("deploy.fixFields")}</Badge> : busy ? <span className="muted" role="status">{t("plan.planning")}</span> : plan ? <FitBadge fits={plan.fits} /> : null;
  return (
    <Card title={t("plan.title")} actions={status} dim={(busy || broken) && plan !== undefined}>
      {plan === undefined ? (
        broken ? null : <p className="muted">{t("plan.none")}</p>
      ) : plan.choice ? (
        <Choice choice={plan.choice} />
      ) : (
        <div className="stack">
          <Notice tone="warn">{t("plan.noFit")}</Notice>
          {plan.changes.length > 0 ? (
            <div className="stack-s">
              <h3>{t("plan.changes")}</h3>
              <ul className="stack-s">
                {plan.changes.map((change) => {
                  const text = say("change", change);
                  const applied = fromChange(change.params);
                  return (
                    <li key={text} className="row">
                      {text}
                      {applied ? <Button size="small" aria-label={t("plan.applyNamed", { change: text })} onClick={() => onApply(applied)}>{t("plan.apply")}</Button> : null}
                    </li>
                  );
                })}
              </ul>
            </div>
          ) : null}
        </div>
      )}
    </Card>
  );
}

function FitBadge({ fits }: { fits: boolean }) {
  const { t } = useI18n();
  return fits ? <Badge tone="ok" icon="check">{t("plan.fits")}</Badge> : <Badge tone="warn" icon="alert">{t("plan.fitsNot")}</Badge>;
}

export function Choice({ choice }: { choice: PlanChoice }) {
  const { t } = useI18n();
  const { me } = useOrg();
  const say = usePlanText(me.currency);
  const speed = choice.predicted.tokens_per_second;
  return (
    <div className="stack">
      <div className="grid-2">
        <Facts
          items={[
            [t("plan.engine"), choice.engine],
            [t("plan.artefact"), <Artefact key="artefact" choice={choice} />],
            [t("plan.quality"), <Quality key="quality" choice={choice} />],
            [t("plan.tier"), choice.tier],
            [t("plan.replicas"), choice.replicas],
            [t("plan.threads"), choice.threads],
          ]}
        />
        <Facts
          items={[
            [t("plan.context"), t("models.contextTokens", { n: choice.context_length })],
            [t("plan.slots"), choice.slots],
            [t("plan.speed"), <Speed key="speed" estimate={speed} />],
            [t("plan.first"), <First key="first" estimate={choice.predicted.ttft_ms ?? null} />],
            [t("plan.price"), choice.price_per_hour === null ? t("plan.noPrice") : exactMoney(choice.price_per_hour, choice.currency)],
          ]}
        />
      </div>
      <MemoryBar memory={choice.memory} />
      <div className="stack-s">
        <h3>{t("plan.reasons")}</h3>
        <ul className="stack-s">
          {choice.reasons.map((reason) => (
            <li key={reason.code}>{say("reason", reason)}</li>
          ))}
        </ul>
      </div>
    </div>
  );
}

/** What is loaded; where it is not there yet, that it is made first and about how long that takes. */
function Artefact({ choice }: { choice: PlanChoice }) {
  const { t } = useI18n();
  const { quantization } = choice.artefact;
  const made = choice.reasons.find((reason) => reason.code === "to_be_made");
  if (!choice.made_of || made === undefined) return quantization;
  return t("plan.made", { quantization, duration: duration(Number(made.params["seconds"]) * 1000) });
}

function Quality({ choice }: { choice: PlanChoice }) {
  const { t, locale } = useI18n();
  const measured = choice.reasons.find((reason) => reason.code === "quality_measured");
  if (measured) return t("plan.quality.measured", { agreement: rough(Number(measured.params["agreement"]), locale), divergence: rough(Number(measured.params["divergence"]), locale) });
  return <span className="muted">{choice.made_of ? t("plan.quality.tbm") : t("plan.quality.unmeasured")}</span>;
}

function Speed({ estimate }: { estimate: Estimate | null }) {
  const { t, locale } = useI18n();
  if (estimate === null) return <span className="muted">{t("plan.notMeasured")}</span>;
  const value = rough(estimate.value, locale);
  return t("plan.speedRange", { value, low: rough(estimate.low, locale), high: rough(estimate.high, locale) });
}

/** To the first token of one request alone with a prompt of 512 tokens. */
function First({ estimate }: { estimate: Estimate | null }) {
  const { t } = useI18n();
  if (estimate === null) return <span className="muted">{t("plan.notMeasured")}</span>;
  return t("plan.firstRange", { value: duration(estimate.value), low: duration(estimate.low), high: duration(estimate.high) });
}

export function MemoryBar({ memory }: { memory: PlanMemory }) {
  const { t, locale } = useI18n();
  const free = Math.max(0, memory.available - memory.total);
  const parts = [
    ["weights", memory.weights],
    ["kv", memory.kv],
    ["overhead", memory.overhead],
    ["free", free],
  ] as const;
  const summary = t("plan.memorySummary", { total: bytes(memory.total, locale), available: bytes(memory.available, locale) });
  return (
    <figure style={{ margin: 0 }} className="stack-s">
      <figcaption className="spread">
        <strong>{t("plan.memory")}</strong>
        <span className="num">{summary}</span>
      </figcaption>
      <div className="membar" aria-hidden="true">
        {parts.map(([name, size]) => (
          <div key={name} className={`membar-part fill-${name}`} style={{ flexGrow: size, flexBasis: 0 }} />
        ))}
      </div>
      <ul className="legend num">
        {parts.map(([name, size]) => (
          <li key={name}>
            <span className={`legend-key fill-${name}`} />
            {t(`plan.memory.${name}`)} {bytes(size, locale)}
          </li>
        ))}
      </ul>
    </figure>
  );
}

export function NotChosen({ rejected }: { rejected: readonly Rejected[] }) {
  const { t } = useI18n();
  const { me } = useOrg();
  const say = usePlanText(me.currency);
  return (
    <Card title={t("plan.notChosen", { n: rejected.length })}>
      {rejected.length === 0 ? (
        <p className="muted">{t("plan.notChosen.none")}</p>
      ) : (
        <Table
          caption={t("plan.notChosen", { n: rejected.length })}
          rows={rejected}
          rowKey={(each) => `${each.engine}/${each.quantization}/${each.tier}/${each.code}`}
          columns={[
            { head: t("plan.option"), cell: (each) => `${each.quantization} · ${each.engine} · ${each.tier}` },
            { head: t("plan.why"), cell: (each) => say("reject", each) },
          ]}
        />
      )}
    </Card>
  );
}
