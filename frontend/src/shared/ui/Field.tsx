import { type InputHTMLAttributes, type ReactNode, type SelectHTMLAttributes, type TextareaHTMLAttributes, useId } from "react";

interface Common {
  label: string;
  help?: ReactNode;
  error?: string | null;
}

function Frame({ id, label, help, error, children }: Common & { id: string; children: ReactNode }) {
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {children}
      {error ? <div className="field-error" id={`${id}-error`}>{error}</div> : null}
      {help ? <div className="field-help" id={`${id}-help`}>{help}</div> : null}
    </div>
  );
}

function described(id: string, { help, error }: Common): string | undefined {
  const ids = [error ? `${id}-error` : "", help ? `${id}-help` : ""].filter(Boolean);
  return ids.length > 0 ? ids.join(" ") : undefined;
}

type InputProps = Common & InputHTMLAttributes<HTMLInputElement>;

export function Input({ label, help, error = null, ...rest }: InputProps) {
  const id = useId();
  return (
    <Frame id={id} label={label} help={help} error={error}>
      <input {...rest} id={id} className="input" aria-invalid={error ? true : undefined} aria-describedby={described(id, { label, help, error })} />
    </Frame>
  );
}

type SelectProps = Common & SelectHTMLAttributes<HTMLSelectElement>;

export function Select({ label, help, error = null, children, ...rest }: SelectProps) {
  const id = useId();
  return (
    <Frame id={id} label={label} help={help} error={error}>
      <select {...rest} id={id} className="input" aria-invalid={error ? true : undefined} aria-describedby={described(id, { label, help, error })}>
        {children}
      </select>
    </Frame>
  );
}

type AreaProps = Common & TextareaHTMLAttributes<HTMLTextAreaElement>;

export function TextArea({ label, help, error = null, ...rest }: AreaProps) {
  const id = useId();
  return (
    <Frame id={id} label={label} help={help} error={error}>
      <textarea {...rest} id={id} className="input" aria-invalid={error ? true : undefined} aria-describedby={described(id, { label, help, error })} />
    </Frame>
  );
}

export interface Option<T extends string> {
  value: T;
  label: string;
}

/** A choice of few, all visible. */
export function Segments<T extends string>({ label, value, options, onChange }: { label: string; value: T; options: readonly Option<T>[]; onChange: (value: T) => void }) {
  return (
    <div className="segments" role="group" aria-label={label}>
      {options.map((option) => (
        <button key={option.value} type="button" className="segment" aria-pressed={option.value === value} onClick={() => onChange(option.value)}>
          {option.label}
        </button>
      ))}
    </div>
  );
}
