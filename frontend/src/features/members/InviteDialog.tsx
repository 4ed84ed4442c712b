import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type SubmitEvent, useState } from "react";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { IssuedInvitation, Role } from "@/shared/api/types";
import { useIdempotencyKey } from "@/shared/api/useIdempotencyKey";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { Dialog } from "@/shared/ui/Dialog";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Input, Select } from "@/shared/ui/Field";

export const ROLES: readonly Role[] = ["owner", "admin", "developer", "billing", "viewer"];

export function InviteDialog({ onClose, onInvited }: { onClose: () => void; onInvited: (invitation: IssuedInvitation) => void }) {
  const { t } = useI18n();
  const { slug } = useOrg();
  const client = useQueryClient();
  const idempotency = useIdempotencyKey();
  const [email, setEmail] = useState("");
  const [role, setRole] = useState<Role>("developer");
  const [checked, setChecked] = useState(false);
  const body = { email: email.trim(), role };
  const wrong = !/^[^\s@]+@[^\s@]+$/.test(body.email);
  const invite = useMutation({
    mutationFn: () => api.invite(slug, body, idempotency.keyFor(body)),
    onSuccess: onInvited,
    onSettled: (_, error) => {
      idempotency.settle(error);
      return client.invalidateQueries({ queryKey: keys.members(slug) });
    },
  });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    setChecked(true);
    if (!wrong && !invite.isPending) invite.mutate();
  };
  return (
    <Dialog title={t("members.invite")} onClose={onClose}>
      <form className="stack" onSubmit={submit} noValidate>
        <Input label={t("members.email")} type="email" autoComplete="off" error={checked && wrong ? t("members.emailInvalid") : null} value={email} onChange={(event) => setEmail(event.target.value)} />
        <Select label={t("members.role")} help={t(`role.${role}.can`)} value={role} onChange={(event) => setRole(event.target.value as Role)}>
          {ROLES.map((each) => (
            <option key={each} value={each}>{t(`role.${each}`)}</option>
          ))}
        </Select>
        {invite.isError ? <ErrorNotice error={invite.error} /> : null}
        <div className="dialog-actions">
          <Button onClick={onClose}>{t("common.cancel")}</Button>
          <Button type="submit" kind="primary" busy={invite.isPending}>{invite.isPending ? t("members.inviting") : t("members.invite")}</Button>
        </div>
      </form>
    </Dialog>
  );
}
