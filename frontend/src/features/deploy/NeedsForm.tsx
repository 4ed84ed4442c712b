import type { Model } from "@/shared/api/types";
import { bytes, count } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { Input, Select } from "@/shared/ui/Field";
import { Card } from "@/shared/ui/Page";
import { newest } from "@/features/models/ModelsPage";
import { contextChoices, type Draft, LIMITS, type Problems, QUALITIES, wholeNumber } from "./form";
import { RolloutForm } from "./RolloutForm";

interface Props {
  draft: Draft;
  models: readonly Model[];
  problems: Problems;
  nameError: string | null; // what the server says of the name
  fixed: boolean; // model and name are those of an existing deployment
  onChange: (change: Partial<Draft>) => void;
}

export function NeedsForm(props: Props) {
  return (
    <form className="stack" onSubmit={(event) => event.preventDefault()}>
      <ModelSection {...props} />
      <NeedsSection {...props} />
      <PinsSection {...props} />
      {props.fixed ? <RolloutForm draft={props.draft} problems={props.problems} onChange={props.onChange} /> : null}
    </form>
  );
}

function chosenVersion({ draft, models }: Props) {
  const model = models.find((each) => each.name === draft.model);
  if (!model) return undefined;
  return model.versions.find((each) => String(each.number) === draft.version) ?? newest(model);
}

function ModelSection(props: Props) {
  const { draft, models, problems, nameError, fixed, onChange } = props;
  const { t } = useI18n();
  const { slug } = useOrg();
  const model = models.find((each) => each.name === draft.model);
  const name = draft.name || draft.model;
  return (
    <Card title={t("deploy.modelSection")}>
      <div className="stack">
        <div className="field-row">
          <Select label={t("deploy.model")} value={draft.model} disabled={fixed} onChange={(event) => onChange({ model: event.target.value, version: "", artefact: "", context: "", alone: false })}>
            {models.map((each) => (
              <option key={each.id} value={each.name}>{each.name}</option>
            ))}
          </Select>
          <Select label={t("deploy.version")} value={draft.version} onChange={(event) => onChange({ version: event.target.value, artefact: "", context: "" })}>
            <option value="">{t("deploy.version.newest", { number: String((model && newest(model)?.number) ?? 1) })}</option>
            {model?.versions.map((each) => (
              <option key={each.id} value={each.number}>v{each.number}</option>
            ))}
          </Select>
        </div>
        {!fixed && chosenVersion(props)?.base ? (
          <Select label={t("deploy.adapter")} help={t("deploy.adapterHelp")} value={draft.alone ? "alone" : ""} onChange={(event) => onChange({ alone: event.target.value === "alone" })}>
            <option value="">{t("deploy.adapter.beside")}</option>
            <option value="alone">{t("deploy.adapter.alone")}</option>
          </Select>
        ) : null}
        <Input
          label={t("deploy.name")}
          disabled={fixed}
          help={problems.name || nameError ? null : t("deploy.nameHelp", { id: `${slug}/${name}` })}
          error={problems.name ? t("deploy.nameInvalid") : nameError}
          placeholder={draft.model}
          autoComplete="off"
          spellCheck={false}
          value={draft.name}
          onChange={(event) => onChange({ name: event.target.value.trim() })}
        />
      </div>
    </Card>
  );
}

function NeedsSection(props: Props) {
  const { draft, problems, onChange } = props;
  const { t, locale } = useI18n();
  const { me } = useOrg();
  const number = (field: "concurrency" | "speed" | "first" | "replicas") => ({
    inputMode: "numeric" as const,
    autoComplete: "off",
    value: draft[field],
    error: problems[field] ? t("deploy.invalidNumber", LIMITS[field]) : null,
    onChange: (event: { target: { value: string } }) => onChange({ [field]: event.target.value }),
  });
  return (
    <Card title={t("deploy.needsSection")}>
      <div className="stack">
        <div className="field-row">
          <Select label={t("deploy.context")} help={t("deploy.contextHelp")} value={draft.context} onChange={(event) => onChange({ context: event.target.value })}>
            <option value="">{t("deploy.context.auto")}</option>
            {contextChoices(chosenVersion(props)?.facts.context_length, wholeNumber(draft.context)).map((length) => (
              <option key={length} value={length}>{count(length, locale)}</option>
            ))}
          </Select>
          <Input label={t("deploy.concurrency")} help={t("deploy.concurrencyHelp")} {...number("concurrency")} />
        </div>
        <div className="field-row">
          <Input label={t("deploy.speed")} help={t("deploy.speedHelp")} {...number("speed")} />
          <Input label={t("deploy.first")} help={t("deploy.firstHelp")} {...number("first")} />
        </div>
        <div className="field-row">
          <Input
            label={t("deploy.price")}
            help={t("deploy.priceHelp", { currency: me.currency })}
            inputMode="decimal"
            autoComplete="off"
            value={draft.price}
            error={problems.price ? t("deploy.invalidPrice") : null}
            onChange={(event) => onChange({ price: event.target.value })}
          />
          <Input label={t("deploy.replicas")} help={t("deploy.replicasHelp")} {...number("replicas")} />
        </div>
        <div className="field-row">
          <Select label={t("deploy.quality")} help={t("deploy.qualityHelp")} value={draft.quality} onChange={(event) => onChange({ quality: QUALITIES.find((each) => each === event.target.value) ?? "any" })}>
            {QUALITIES.map((quality) => (
              <option key={quality} value={quality}>{t(`quality.${quality}`)}</option>
            ))}
          </Select>
        </div>
      </div>
    </Card>
  );
}

function PinsSection(props: Props) {
  const { draft, problems, onChange } = props;
  const { t, locale } = useI18n();
  const pinned = draft.artefact !== "" || draft.slots !== "";
  return (
    <Card title={t("deploy.pinsSection")} actions={pinned ? <Button size="small" kind="quiet" onClick={() => onChange({ artefact: "", slots: "" })}>{t("deploy.unpin")}</Button> : null}>
      <div className="field-row">
        <Select label={t("deploy.pin.artefact")} value={draft.artefact} onChange={(event) => onChange({ artefact: event.target.value })}>
          <option value="">{t("deploy.pin.auto")}</option>
          {chosenVersion(props)?.artefacts.map((each) => (
            <option key={each.id} value={each.id}>{`${each.quantization} (${bytes(each.size, locale)})`}</option>
          ))}
        </Select>
        <Input
          label={t("deploy.pin.slots")}
          help={t("deploy.pin.slotsHelp")}
          inputMode="numeric"
          autoComplete="off"
          value={draft.slots}
          error={problems.slots ? t("deploy.invalidNumber", LIMITS.slots) : null}
          onChange={(event) => onChange({ slots: event.target.value })}
        />
      </div>
    </Card>
  );
}
