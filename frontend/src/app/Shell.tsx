import { type ReactNode, useEffect, useState } from "react";
import { Link, useLocation } from "wouter";
import type { Action, Me, Membership } from "@/shared/api/types";
import { relative } from "@/shared/format/time";
import { type PlainKey, useI18n } from "@/shared/i18n";
import { useLive } from "@/shared/live/LiveProvider";
import { useSignOut } from "@/shared/session";
import { Icon, type IconName } from "@/shared/ui/Icon";
import { Notice } from "@/shared/ui/Notice";
import { useNow } from "@/shared/ui/useNow";
import { LanguageSwitch } from "./LanguageSwitch";

interface Item {
  key: PlainKey;
  path: string;
  icon: IconName;
  action: Action;
}

const GROUPS: readonly { title: PlainKey; items: readonly Item[] }[] = [
  {
    title: "nav.build",
    items: [
      { key: "nav.overview", path: "", icon: "home", action: "org.read" },
      { key: "nav.models", path: "/models", icon: "box", action: "models.read" },
      { key: "nav.deploy", path: "/deploy", icon: "rocket", action: "deployments.write" },
      { key: "nav.deployments", path: "/deployments", icon: "layers", action: "deployments.read" },
      { key: "nav.keys", path: "/keys", icon: "key", action: "keys.read_own" },
    ],
  },
  {
    title: "nav.watch",
    items: [
      { key: "nav.usage", path: "/usage", icon: "bars", action: "usage.read" },
      { key: "nav.budgets", path: "/budgets", icon: "gauge", action: "budgets.read" },
      { key: "nav.statements", path: "/statements", icon: "paper", action: "billing.read" },
    ],
  },
  { title: "nav.organisation", items: [{ key: "nav.members", path: "/members", icon: "people", action: "members.read" }] },
];

export function Shell({ me, current, children }: { me: Me; current: Membership | null; children: ReactNode }) {
  const { t } = useI18n();
  const [open, setOpen] = useState(false);
  const [location] = useLocation();
  useEffect(() => setOpen(false), [location]);
  useEffect(() => {
    if (!open) return;
    const close = (event: KeyboardEvent) => {
      if (event.key === "Escape") setOpen(false);
    };
    document.addEventListener("keydown", close);
    return () => document.removeEventListener("keydown", close);
  }, [open]);
  return (
    <>
      <a className="skip-link" href="#main">{t("app.skip")}</a>
      <header className="topbar">
        <Brand />
        <button type="button" className="button" data-size="small" aria-expanded={open} aria-controls="rail" onClick={() => setOpen(!open)}>
          <Icon name="menu" /> {open ? t("app.closeMenu") : t("app.menu")}
        </button>
      </header>
      <div className="shell">
        <aside className="rail" id="rail" data-open={open} aria-label={t("app.menu")}>
          <Brand />
          {me.memberships.length > 0 ? <OrgSwitch me={me} current={current} /> : null}
          {current ? <Navigation membership={current} /> : null}
          <Foot me={me} />
        </aside>
        <main className="main" id="main" tabIndex={-1}>
          {current ? <LiveBar /> : null}
          {me.password_is_temporary ? <FirstPassword /> : null}
          {current?.org.suspended ? <Suspended reason={current.org.suspended_reason} /> : null}
          {children}
        </main>
      </div>
    </>
  );
}

function Brand() {
  return (
    <Link href="/" className="brand">
      <img src="/assets/berth.svg" width="24" height="24" alt="" /> Berth
    </Link>
  );
}

function OrgSwitch({ me, current }: { me: Me; current: Membership | null }) {
  const { t } = useI18n();
  const [, go] = useLocation();
  return (
    <select className="input" aria-label={t("app.organisation")} value={current?.org.slug ?? ""} onChange={(event) => go(`/o/${event.target.value}`)}>
      {current ? null : <option value="" disabled>{t("app.organisation")}</option>}
      {me.memberships.map(({ org }) => (
        <option key={org.id} value={org.slug}>{org.name}</option>
      ))}
    </select>
  );
}

function Navigation({ membership }: { membership: Membership }) {
  const { t } = useI18n();
  const [location] = useLocation();
  const base = `/o/${membership.org.slug}`;
  return (
    <nav aria-label={t("app.nav")}>
      {GROUPS.map(({ title, items }) => {
        const allowed = items.filter((item) => membership.permissions.includes(item.action));
        if (allowed.length === 0) return null;
        return (
          <div key={title}>
            <div className="rail-title" id={title}>{t(title)}</div>
            <ul aria-labelledby={title}>
              {allowed.map((item) => {
                const href = base + item.path;
                const here = location === href || (item.path !== "" && location.startsWith(`${href}/`));
                return (
                  <li key={item.key}>
                    <Link href={href} className="rail-link" aria-current={here ? "page" : undefined}>
                      <Icon name={item.icon} /> {t(item.key)}
                    </Link>
                  </li>
                );
              })}
            </ul>
          </div>
        );
      })}
    </nav>
  );
}

function Foot({ me }: { me: Me }) {
  const { t } = useI18n();
  const [location] = useLocation();
  const signOut = useSignOut();
  return (
    <div className="rail-foot">
      <div className="small muted" style={{ padding: "0 8px", overflowWrap: "anywhere" }}>{me.name || me.email}</div>
      <Link href="/account" className="rail-link" aria-current={location === "/account" ? "page" : undefined}>
        <Icon name="person" /> {t("nav.account")}
      </Link>
      <button type="button" className="rail-link" style={{ border: 0, background: "none", font: "inherit", cursor: "pointer" }} onClick={() => void signOut()}>
        <Icon name="exit" /> {t("nav.signOut")}
      </button>
      <LanguageSwitch />
    </div>
  );
}

function LiveBar() {
  const live = useLive();
  const { t, locale } = useI18n();
  const now = useNow(live.state === "paused" ? 1000 : null);
  const text =
    live.state === "paused" ? t("live.paused", { ago: relative(live.since / 1000, Math.max(now, live.since), locale) }) : t(live.state === "live" ? "live.live" : "live.connecting");
  return (
    <div className="live-bar" data-status={live.state}>
      <span className="row">
        <Icon name={live.state === "live" ? "check" : live.state === "paused" ? "alert" : "clock"} {...(live.state === "live" ? { tone: "ok" as const } : {})} />
        {text}
      </span>
    </div>
  );
}

function FirstPassword() {
  const { t } = useI18n();
  return (
    <div style={{ maxWidth: 1280, margin: "0 auto 16px" }}>
      <Notice tone="warn">
        <p>
          {t("app.firstPassword")} <Link href="/account">{t("app.changePassword")}</Link>
        </p>
      </Notice>
    </div>
  );
}

function Suspended({ reason }: { reason: string }) {
  const { t } = useI18n();
  return (
    <div style={{ maxWidth: 1280, margin: "0 auto 16px" }}>
      <Notice tone="warn" title={t("app.suspended")}>{reason ? <p>{t("app.suspendedReason", { reason })}</p> : null}</Notice>
    </div>
  );
}
