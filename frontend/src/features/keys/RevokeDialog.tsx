import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { ApiKey, ChangedKey } from "@/shared/api/types";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { Dialog } from "@/shared/ui/Dialog";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Input } from "@/shared/ui/Field";
import { useToast } from "@/shared/ui/Toasts";

export function RevokeDialog({ apiKey, onClose, onRevoked }: { apiKey: ApiKey; onClose: () => void; onRevoked: (key: ChangedKey) => void }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const client = useQueryClient();
  const toast = useToast();
  const [typed, setTyped] = useState("");
  const revoke = useMutation({
    mutationFn: () => api.revokeKey(slug, apiKey.id),
    onSuccess: (key) => {
      toast(t("keys.revoked", { name: key.name }));
      onRevoked(key);
    },
    onSettled: () => client.invalidateQueries({ queryKey: keys.apiKeys(slug) }),
  });
  const blocked = typed === apiKey.hint ? null : t("keys.revoke.mismatch");
  return (
    <Dialog title={t("keys.revoke.title", { name: apiKey.name })} onClose={onClose}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (blocked === null && !revoke.isPending) revoke.mutate();
        }}
      >
        <p>{t("keys.revoke.text")}</p>
        <Input label={t("keys.revoke.confirm", { hint: apiKey.hint })} autoComplete="off" spellCheck={false} value={typed} onChange={(event) => setTyped(event.target.value)} />
        {revoke.isError ? <ErrorNotice error={revoke.error} /> : null}
        <div className="dialog-actions">
          <Button onClick={onClose}>{t("common.cancel")}</Button>
          <Button type="submit" kind="danger" busy={revoke.isPending} blocked={blocked}>{revoke.isPending ? t("keys.revoking") : t("keys.revoke")}</Button>
        </div>
      </form>
    </Dialog>
  );
}
