import type { ReactNode } from "react";
import { Icon, type IconName, type Tone } from "./Icon";

const ICONS: Record<Tone, IconName> = { ok: "check", warn: "alert", danger: "alert", info: "info", idle: "info" };

export function Notice({ tone, title, role, children }: { tone: Tone; title?: string; role?: "alert" | "status"; children?: ReactNode }) {
  return (
    <div className="notice" data-tone={tone} role={role}>
      <Icon name={ICONS[tone]} tone={tone} />
      <div className="notice-body">
        {title ? <p><strong>{title}</strong></p> : null}
        {children}
      </div>
    </div>
  );
}
