import { type ReactNode, useEffect, useRef, useState } from "react";
import { dateTime, shortDateTime } from "@/shared/format/time";
import { useI18n } from "@/shared/i18n";

export interface Column<T> {
  head: ReactNode;
  cell: (row: T) => ReactNode;
  end?: boolean; // numbers stand at the right
  foot?: ReactNode;
}

/** A name on one line; what does not fit is in its title. */
export function Name({ children }: { children: string }) {
  return <span className="name" title={children}>{children}</span>;
}

/** An instant in a narrow column, on one line; year and zone are in its title. */
export function When({ at }: { at: string }) {
  const { locale } = useI18n();
  return <time className="nowrap" dateTime={at} title={dateTime(at, locale)}>{shortDateTime(at, locale)}</time>;
}

/** What lies outside the box to either side, so that its edge can say that there is more. */
function useHidden() {
  const box = useRef<HTMLDivElement>(null);
  const [hidden, setHidden] = useState({ start: false, end: false });
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const look = () => {
      const rest = element.scrollWidth - element.clientWidth - Math.abs(element.scrollLeft);
      setHidden((now) => {
        const next = { start: Math.abs(element.scrollLeft) > 1, end: rest > 1 };
        return now.start === next.start && now.end === next.end ? now : next;
      });
    };
    const observer = new ResizeObserver(look);
    observer.observe(element);
    if (element.firstElementChild) observer.observe(element.firstElementChild);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, []);
  return { box, hidden };
}

/** A real table. The first column names the row. `foot` of any column makes a totals row. */
export function Table<T>({ caption, columns, rows, rowKey }: { caption: string; columns: readonly Column<T>[]; rows: readonly T[]; rowKey: (row: T) => string }) {
  const align = (column: Column<T>) => (column.end ? "end" : "start");
  const { box, hidden } = useHidden();
  const wide = hidden.start || hidden.end;
  return (
    // A table that scrolls must be in reach of the keyboard.
    <div className="table-wrap" ref={box} data-more-start={hidden.start} data-more-end={hidden.end} tabIndex={wide ? 0 : undefined} role={wide ? "group" : undefined} aria-label={wide ? caption : undefined}>
      <table>
        <caption className="visually-hidden">{caption}</caption>
        <thead>
          <tr>
            {columns.map((column, index) => (
              <th key={index} scope="col" data-align={align(column)}>{column.head}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={rowKey(row)}>
              {columns.map((column, index) =>
                index === 0 ? (
                  <th key={index} scope="row" data-align={align(column)}>{column.cell(row)}</th>
                ) : (
                  <td key={index} data-align={align(column)}>{column.cell(row)}</td>
                ),
              )}
            </tr>
          ))}
        </tbody>
        {columns.some((column) => column.foot !== undefined) ? (
          <tfoot>
            <tr>
              {columns.map((column, index) =>
                index === 0 ? <th key={index} scope="row">{column.foot}</th> : <td key={index} data-align={align(column)}>{column.foot}</td>,
              )}
            </tr>
          </tfoot>
        ) : null}
      </table>
    </div>
  );
}

export function Facts({ items }: { items: readonly (readonly [string, ReactNode])[] }) {
  return (
    <dl className="facts">
      {items.map(([name, value]) => (
        <div key={name} style={{ display: "contents" }}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
