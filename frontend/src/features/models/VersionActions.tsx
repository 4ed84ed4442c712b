import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { keys } from "@/shared/api/cache";
import type { Model } from "@/shared/api/types";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { Dialog } from "@/shared/ui/Dialog";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { useToast } from "@/shared/ui/Toasts";
import { importApi } from "./importApi";

/** Deleting versions of a model that nothing runs. */
export function VersionActions({ model }: { model: Model }) {
  const { t } = useI18n();
  const { slug, can } = useOrg();
  const client = useQueryClient();
  const toast = useToast();
  const [asked, setAsked] = useState<number | null>(null);
  const remove = useMutation({
    mutationFn: (number: number) => importApi.deleteVersion(slug, model.name, number),
    onSuccess: (_, number) => {
      setAsked(null);
      toast(t("models.deleted", { n: number, name: model.name }));
    },
    onSettled: () => client.invalidateQueries({ queryKey: keys.models(slug) }),
  });
  if (!can("models.write") || model.deployments.length > 0) return null;
  const close = () => {
    setAsked(null);
    remove.reset();
  };
  return (
    <div className="row">
      {model.versions.map(({ number }) => (
        <Button key={number} size="small" kind="quiet" aria-label={t("models.deleteNamed", { n: number, name: model.name })} onClick={() => setAsked(number)}>{t("models.delete", { n: number })}</Button>
      ))}
      {asked !== null ? (
        <Dialog title={t("models.deleteNamed", { n: asked, name: model.name })} onClose={close} hold={remove.isPending}>
          <p>{t("models.deleteAsk", { n: asked, name: model.name })}</p>
          {remove.isError ? <ErrorNotice error={remove.error} /> : null}
          <div className="row">
            <Button kind="danger" busy={remove.isPending} onClick={() => remove.mutate(asked)}>{t("models.delete", { n: asked })}</Button>
            <Button onClick={close}>{t("import.close")}</Button>
          </div>
        </Dialog>
      ) : null}
    </div>
  );
}
