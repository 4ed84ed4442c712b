import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useIdempotencyKey } from "@/shared/api/useIdempotencyKey";
import { bytes, compact } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Input } from "@/shared/ui/Field";
import { Loaded } from "@/shared/ui/Loaded";
import { Card } from "@/shared/ui/Page";
import type { ImportForm } from "./form";
import { importApi, importKeys, type LibraryModel } from "./importApi";

/** Known models. One press imports; those that ask for an agreement open the dialog, because they need a token. */
export function LibraryCard({ here, onAsk }: { here: ReadonlySet<string>; onAsk: (form: Partial<ImportForm>) => void }) {
  const { t } = useI18n();
  const [wanted, setWanted] = useState("");
  const library = useQuery({ queryKey: importKeys.library, queryFn: importApi.library, staleTime: Infinity });
  const matches = (model: LibraryModel) => `${model.title} ${model.publisher} ${model.repository}`.toLowerCase().includes(wanted.trim().toLowerCase());
  return (
    <Card title={t("library.title")}>
      <div className="stack">
        <p className="muted">{t("library.lead")}</p>
        <Input label={t("library.filter")} type="search" value={wanted} onChange={(event) => setWanted(event.target.value)} />
        <Loaded query={library}>
          {(models) => {
            const shown = models.filter((model) => model.repository !== "" && matches(model));
            return shown.length === 0 ? <p className="muted">{t("library.none")}</p> : (
              <ul className="stack library">
                {shown.map((model) => <Entry key={model.key} model={model} here={here.has(model.name)} onAsk={onAsk} />)}
              </ul>
            );
          }}
        </Loaded>
      </div>
    </Card>
  );
}

function Entry({ model, here, onAsk }: { model: LibraryModel; here: boolean; onAsk: (form: Partial<ImportForm>) => void }) {
  const { t, locale } = useI18n();
  const { slug, can } = useOrg();
  const client = useQueryClient();
  const idempotency = useIdempotencyKey();
  const begin = useMutation({
    mutationFn: () => {
      const body = { source: "hub" as const, name: model.name, repository: model.repository, ...(model.files ? { files: model.files } : {}) };
      return importApi.start(slug, body, idempotency.keyFor(body));
    },
    onSettled: (_, error) => {
      idempotency.settle(error);
      return client.invalidateQueries({ queryKey: importKeys.imports(slug) });
    },
  });
  const facts = [
    model.publisher,
    t("library.parameters", { n: compact(model.parameters, "en") }),
    model.active_parameters < model.parameters ? t("library.active", { n: compact(model.active_parameters, "en") }) : "",
    t("library.context", { n: model.context_length }),
    t("library.download", { size: bytes(model.size, locale) }),
    model.licence,
    model.tasks.includes("embed") ? t("library.embed") : "",
    model.gated ? t("library.gated") : "",
  ].filter(Boolean);
  return (
    <li className="stack-s">
      <div className="row">
        <strong>{model.title}</strong>
        {can("models.write") && !here ? (
          <Button size="small" busy={begin.isPending} aria-label={t("library.importNamed", { name: model.title })} onClick={() => (model.gated ? onAsk({ source: "hub", name: model.name, repository: model.repository, files: model.files }) : begin.mutate())}>
            {t("library.import")}
          </Button>
        ) : null}
      </div>
      <p>{model.good_for[locale] ?? model.good_for["en"]}</p>
      <p className="small muted">{facts.join(" · ")}</p>
      {begin.isError ? <ErrorNotice error={begin.error} /> : null}
    </li>
  );
}
