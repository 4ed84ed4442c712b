import type { ButtonHTMLAttributes, ReactNode } from "react";
import { Link } from "wouter";

type Kind = "primary" | "plain" | "danger" | "quiet";

interface Look {
  kind?: Kind;
  size?: "normal" | "small";
  children: ReactNode;
}

interface ButtonProps extends Look, Omit<ButtonHTMLAttributes<HTMLButtonElement>, "disabled" | "children"> {
  busy?: boolean;
  /** Why it cannot be pressed now. It stays in reach of the keyboard so that the reason can be read. */
  blocked?: string | null;
}

export function Button({ kind = "plain", size = "normal", busy = false, blocked = null, type = "button", onClick, children, ...rest }: ButtonProps) {
  const off = busy || blocked !== null;
  return (
    <button
      {...rest}
      type={type}
      className="button"
      data-kind={kind}
      data-size={size}
      aria-disabled={off}
      aria-busy={busy}
      title={blocked ?? rest.title}
      onClick={(event) => {
        if (off) event.preventDefault();
        else onClick?.(event);
      }}
    >
      {children}
    </button>
  );
}

export function ButtonLink({ kind = "plain", size = "normal", href, label, children }: Look & { href: string; label?: string }) {
  return (
    <Link href={href} className="button" data-kind={kind} data-size={size} aria-label={label}>
      {children}
    </Link>
  );
}
