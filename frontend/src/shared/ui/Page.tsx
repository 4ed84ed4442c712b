import { type ReactNode, useEffect, useRef } from "react";
import { useLocation } from "wouter";

/** A page's head: one h1, one primary action at the top right. After navigation the h1 takes focus, so that readers hear it. */
export function Page({ title, scope, lead, actions, children }: { title: string; scope?: string; lead?: ReactNode; actions?: ReactNode; children: ReactNode }) {
  const heading = useRef<HTMLHeadingElement>(null);
  const [location] = useLocation();
  useEffect(() => {
    document.title = scope ? `${title} · ${scope} · Berth` : `${title} · Berth`;
  }, [title, scope]);
  useEffect(() => {
    if (navigated(location)) heading.current?.focus({ preventScroll: true });
  }, [location]);
  return (
    <div className="page">
      <div className="page-head">
        <div className="stack-s">
          <h1 ref={heading} tabIndex={-1}>{title}</h1>
          {lead ? <div className="page-lead">{lead}</div> : null}
        </div>
        {actions ? <div className="row">{actions}</div> : null}
      </div>
      {children}
    </div>
  );
}

let lastLocation: string | null = null;

/** False at the first load, where the browser's own start of reading is right. */
function navigated(location: string): boolean {
  const moved = lastLocation !== null && lastLocation !== location;
  lastLocation = location;
  return moved;
}

export function Card({ title, actions, dim = false, children }: { title?: ReactNode; actions?: ReactNode; dim?: boolean; children: ReactNode }) {
  return (
    <section className="card" data-dim={dim}>
      {title !== undefined ? (
        <div className="card-head">
          <h2>{title}</h2>
          {actions}
        </div>
      ) : null}
      <div className="card-body">{children}</div>
    </section>
  );
}

export function Empty({ text, children }: { text: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <p>{text}</p>
      {children}
    </div>
  );
}
