import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "@/shared/api/api";
import type { Alternative, Survey } from "@/shared/api/types";
import { exactMoney } from "@/shared/format/money";
import { count, duration, rough } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Input } from "@/shared/ui/Field";
import { Notice } from "@/shared/ui/Notice";
import { Card } from "@/shared/ui/Page";
import { Table } from "@/shared/ui/Table";
import { usePlanText } from "./planText";
import { type People, PEOPLE, PEOPLE_FIELDS, PEOPLE_LIMITS, toDemand, wrongFields } from "./anywhere";

const SHOWN = 12; // of what was turned down

/** What it would take to serve so many people, also on hardware that is not here. Deploys nothing. */
export function Anywhere({ model, version }: { model: string; version: number | null }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const [people, setPeople] = useState<People>(PEOPLE);
  const wrong = wrongFields(people);
  const ask = useMutation({
    mutationFn: () => api.planAnywhere(slug, { model, demand: toDemand(people), ...(version === null ? {} : { version }) }),
  });
  return (
    <Card
      title={t("anywhere.title")}
      actions={<Button busy={ask.isPending} blocked={wrong.length > 0 ? t("deploy.fixFields") : null} onClick={() => ask.mutate()}>{t("anywhere.ask")}</Button>}
    >
      <div className="stack">
        <p className="muted">{t("anywhere.lead")}</p>
        <div className="field-row">
          {PEOPLE_FIELDS.map((field) => (
            <Input
              key={field}
              label={t(`anywhere.${field}`)}
              inputMode="numeric"
              autoComplete="off"
              value={people[field]}
              error={wrong.includes(field) ? t("anywhere.invalid", PEOPLE_LIMITS[field]) : null}
              onChange={(event) => setPeople((now) => ({ ...now, [field]: event.target.value }))}
            />
          ))}
        </div>
        {ask.isError ? <ErrorNotice error={ask.error} /> : null}
        {ask.data ? <Answer found={ask.data} /> : null}
      </div>
    </Card>
  );
}

function Answer({ found }: { found: Survey }) {
  const { t, locale } = useI18n();
  const say = usePlanText(found.currency);
  return (
    <div className="stack" role="status">
      {found.fits ? null : <Notice tone="warn">{t("anywhere.none")}</Notice>}
      {found.fits ? (
        <div className="stack-s">
          <p>{t("anywhere.alternatives")}</p>
          <Alternatives rows={found.alternatives} currency={found.currency} caption={t("anywhere.alternatives")} />
        </div>
      ) : null}
      {found.nearest.length > 0 ? (
        <ul className="stack-s">
          {found.nearest.map((each) => (
            <li key={each.change.message}>{t("anywhere.nearest", { change: say("remedy", each.change), price: each.plan.per_hour === null ? t("plan.stale.unknown") : exactMoney(each.plan.per_hour, found.currency) })}</li>
          ))}
        </ul>
      ) : null}
      <details>
        <summary>{t("anywhere.rejected", { n: count(Math.min(SHOWN, found.rejected.length), locale), all: count(found.considered, locale) })}</summary>
        <Table
          caption={t("plan.why")}
          rows={found.rejected.slice(0, SHOWN)}
          rowKey={(each) => `${each.option}/${each.reason_code}`}
          columns={[
            { head: t("plan.option"), cell: (each) => each.option },
            { head: t("plan.why"), cell: (each) => say("survey", { code: each.reason_code, message: each.message, params: each.params }) },
          ]}
        />
      </details>
    </div>
  );
}

function Alternatives({ rows, currency, caption }: { rows: readonly Alternative[]; currency: string; caption: string }) {
  const { t, locale } = useI18n();
  return (
    <Table
      caption={caption}
      rows={rows}
      rowKey={(each) => each.label}
      columns={[
        { head: t("plan.option"), cell: (each) => each.label },
        { head: t("plan.replicas"), cell: (each) => count(each.replicas_needed, locale), end: true },
        { head: t("plan.price"), cell: (each) => (each.per_hour === null ? t("plan.stale.unknown") : exactMoney(each.per_hour, currency)), end: true },
        { head: t("plan.field.tokens_per_second"), cell: (each) => t("plan.speedUnit", { value: rough(each.speed, locale) }), end: true },
        { head: t("plan.field.ttft_ms"), cell: (each) => duration(each.ttft), end: true },
        { head: t("anywhere.loss"), cell: (each) => `${rough(100 * each.loss, locale)} %`, end: true },
      ]}
    />
  );
}
