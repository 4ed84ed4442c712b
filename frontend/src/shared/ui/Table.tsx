import type { ReactNode } from "react";

export interface Column<T> {
  head: ReactNode;
  cell: (row: T) => ReactNode;
  end?: boolean; // numbers stand at the right
  foot?: ReactNode;
}

/** A real table. The first column names the row. `foot` of any column makes a totals row. */
export function Table<T>({ caption, columns, rows, rowKey }: { caption: string; columns: readonly Column<T>[]; rows: readonly T[]; rowKey: (row: T) => string }) {
  const align = (column: Column<T>) => (column.end ? "end" : "start");
  return (
    <div className="table-wrap">
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
