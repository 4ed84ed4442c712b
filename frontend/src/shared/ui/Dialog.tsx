import { type ReactNode, useEffect, useId, useRef } from "react";

/** A modal on the browser's own dialog: it traps focus and gives it back. Esc closes unless `hold`. */
export function Dialog({ title, onClose, hold = false, children }: { title: string; onClose: () => void; hold?: boolean; children: ReactNode }) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    if (dialog && !dialog.open) dialog.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={ref}
      className="dialog"
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        if (!hold) onClose();
      }}
      onKeyDown={(event) => {
        if (hold && event.key === "Escape") event.preventDefault(); // a second Esc would close past `cancel`
      }}
    >
      <div className="stack">
        <h2 id={id}>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}
