import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "@/shared/api/api";
import { keys } from "@/shared/api/cache";
import type { IssuedInvitation, Member, Role } from "@/shared/api/types";
import { dateTime } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { CodeBlock } from "@/shared/ui/Copy";
import { Dialog } from "@/shared/ui/Dialog";
import { ErrorNotice } from "@/shared/ui/ErrorNotice";
import { Loaded } from "@/shared/ui/Loaded";
import { Notice } from "@/shared/ui/Notice";
import { Card, Page } from "@/shared/ui/Page";
import { Table } from "@/shared/ui/Table";
import { useToast } from "@/shared/ui/Toasts";
import { InviteDialog, ROLES } from "./InviteDialog";

export default function MembersPage() {
  const { t } = useI18n();
  const { org, slug, can } = useOrg();
  const members = useQuery({ queryKey: keys.members(slug), queryFn: () => api.members(slug) });
  const [inviting, setInviting] = useState(false);
  const [issued, setIssued] = useState<IssuedInvitation | null>(null);
  const write = can("members.write");
  return (
    <Page title={t("members.title")} scope={org.name} lead={t("members.lead")} actions={write ? <Button kind="primary" onClick={() => setInviting(true)}>{t("members.invite")}</Button> : null}>
      {issued ? (
        <Notice tone="ok" title={t("members.inviteLink")}>
          <div className="stack">
            <p>{t("members.inviteLink.text", { email: issued.email })}</p>
            <CodeBlock label={t("members.inviteLink")} code={issued.url} wrap />
            <div>
              <Button onClick={() => setIssued(null)}>{t("common.close")}</Button>
            </div>
          </div>
        </Notice>
      ) : null}
      <Loaded query={members}>{({ items }) => <MemberTable members={items} write={write} />}</Loaded>
      {write ? <Pending /> : null}
      {inviting ? (
        <InviteDialog
          onClose={() => setInviting(false)}
          onInvited={(invitation) => {
            setInviting(false);
            setIssued(invitation);
          }}
        />
      ) : null}
    </Page>
  );
}

function MemberTable({ members, write }: { members: readonly Member[]; write: boolean }) {
  const { t, locale } = useI18n();
  const { me } = useOrg();
  const [removing, setRemoving] = useState<Member | null>(null);
  const owners = members.filter((each) => each.role === "owner");
  /** Why this member cannot be removed: an organisation keeps an owner. */
  const keeps = (member: Member) => (member.role !== "owner" || owners.length > 1 ? null : t(member.user.id === me.id ? "members.lastOwnerYou" : "members.lastOwner"));
  return (
    <>
      <Table
        caption={t("members.title")}
        rows={members}
        rowKey={(member) => member.id}
        columns={[
          {
            head: t("members.person"),
            cell: ({ user }) => (
              <>
                <div>
                  {user.name || user.email} {user.id === me.id ? <span className="muted">({t("members.you")})</span> : null}
                </div>
                {user.name ? <div className="small muted">{user.email}</div> : null}
              </>
            ),
          },
          { head: t("members.role"), cell: (member) => (write ? <RoleSelect member={member} /> : t(`role.${member.role}`)) },
          { head: t("members.joined"), cell: (member) => dateTime(member.created_at, locale) },
          ...(write
            ? [
                {
                  head: <span className="visually-hidden">{t("common.actions")}</span>,
                  end: true,
                  cell: (member: Member) => (
                    <Button size="small" kind="danger" blocked={keeps(member)} aria-label={t("members.removeNamed", { email: member.user.email })} onClick={() => setRemoving(member)}>{t("members.remove")}</Button>
                  ),
                },
              ]
            : []),
        ]}
      />
      {removing ? <RemoveDialog member={removing} onClose={() => setRemoving(null)} /> : null}
    </>
  );
}

function RoleSelect({ member }: { member: Member }) {
  const { t } = useI18n();
  const { slug, me } = useOrg();
  const client = useQueryClient();
  const toast = useToast();
  const change = useMutation({
    mutationFn: (role: Role) => api.setRole(slug, member.id, role),
    onSuccess: (fresh) => toast(t("members.roleChanged", { email: fresh.user.email, role: t(`role.${fresh.role}`) })),
    onSettled: () => {
      if (member.user.id === me.id) void client.invalidateQueries({ queryKey: keys.me });
      return client.invalidateQueries({ queryKey: keys.members(slug) });
    },
  });
  return (
    <div className="stack-s" style={{ minWidth: 160, maxWidth: 420 }}>
      <select className="input" aria-label={t("members.roleOf", { email: member.user.email })} value={change.isPending ? change.variables : member.role} onChange={(event) => change.mutate(event.target.value as Role)}>
        {ROLES.map((role) => (
          <option key={role} value={role}>{t(`role.${role}`)}</option>
        ))}
      </select>
      <span className="small muted">{t(`role.${member.role}.can`)}</span>
      {change.isError ? <ErrorNotice error={change.error} /> : null}
    </div>
  );
}

function RemoveDialog({ member, onClose }: { member: Member; onClose: () => void }) {
  const { t } = useI18n();
  const { slug, me } = useOrg();
  const client = useQueryClient();
  const toast = useToast();
  const { email } = member.user;
  const remove = useMutation({
    mutationFn: () => api.removeMember(slug, member.id),
    onSuccess: () => {
      toast(t("members.removed", { email }));
      onClose();
      if (member.user.id === me.id) void client.invalidateQueries({ queryKey: keys.me });
    },
    onSettled: () => client.invalidateQueries({ queryKey: keys.members(slug) }),
  });
  return (
    <Dialog title={t("members.remove.title", { email })} onClose={onClose}>
      <p>{t("members.remove.text")}</p>
      {remove.isError ? <ErrorNotice error={remove.error} /> : null}
      <div className="dialog-actions">
        <Button onClick={onClose}>{t("common.cancel")}</Button>
        <Button kind="danger" busy={remove.isPending} onClick={() => remove.mutate()}>{remove.isPending ? t("members.removing") : t("members.remove.confirm")}</Button>
      </div>
    </Dialog>
  );
}

function Pending() {
  const { t, locale } = useI18n();
  const { slug } = useOrg();
  const client = useQueryClient();
  const queryKey = [...keys.members(slug), "invitations"];
  const invitations = useQuery({ queryKey, queryFn: () => api.invitations(slug) });
  const withdraw = useMutation({ mutationFn: (id: string) => api.withdrawInvitation(slug, id), onSettled: () => client.invalidateQueries({ queryKey }) });
  return (
    <Card title={t("members.pending")}>
      <div className="stack">
        {withdraw.isError ? <ErrorNotice error={withdraw.error} /> : null}
        <Loaded query={invitations} rows={1}>
          {({ items }) =>
            items.length === 0 ? (
              <p className="muted">{t("common.none")}</p>
            ) : (
              <Table
                caption={t("members.pending")}
                rows={items}
                rowKey={(each) => each.id}
                columns={[
                  { head: t("members.email"), cell: (each) => each.email },
                  { head: t("members.role"), cell: (each) => t(`role.${each.role}`) },
                  { head: t("members.expires"), cell: (each) => dateTime(each.expires_at, locale) },
                  {
                    head: <span className="visually-hidden">{t("common.actions")}</span>,
                    end: true,
                    cell: (each) => (
                      <Button size="small" aria-label={t("members.withdrawNamed", { email: each.email })} onClick={() => withdraw.mutate(each.id)}>{t("members.withdraw")}</Button>
                    ),
                  },
                ]}
              />
            )
          }
        </Loaded>
      </div>
    </Card>
  );
}
