import { createContext, type ReactNode, useCallback, useContext, useRef, useState } from "react";

const Context = createContext<(text: string) => void>(() => undefined);
const SHOWN_MS = 6000;

/** Results of one's own actions only; never errors that need action, money or secrets. */
export function ToastProvider({ children }: { children: ReactNode }) {
  const [toasts, setToasts] = useState<{ id: number; text: string }[]>([]);
  const last = useRef(0);
  const show = useCallback((text: string) => {
    last.current += 1;
    const id = last.current;
    setToasts((now) => [...now, { id, text }]);
    window.setTimeout(() => setToasts((now) => now.filter((toast) => toast.id !== id)), SHOWN_MS);
  }, []);
  return (
    <Context.Provider value={show}>
      {children}
      <div className="toasts" role="status">
        {toasts.map((toast) => (
          <div key={toast.id} className="toast">{toast.text}</div>
        ))}
      </div>
    </Context.Provider>
  );
}

export function useToast(): (text: string) => void {
  return useContext(Context);
}
