import type { InfiniteData, UseInfiniteQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import type { Page } from "../api/types";
import { useI18n } from "../i18n";
import { Button } from "./Button";
import { Loaded } from "./Loaded";
import { type Column, Table } from "./Table";

interface Props<T> {
  query: UseInfiniteQueryResult<InfiniteData<Page<T>>>;
  caption: string;
  columns: readonly Column<T>[];
  rowKey: (row: T) => string;
  empty: ReactNode;
}

/** A table of a long list, page by page. */
export function Paged<T>({ query, caption, columns, rowKey, empty }: Props<T>) {
  const { t } = useI18n();
  return (
    <Loaded query={query} rows={5}>
      {(data) => {
        const rows = data.pages.flatMap((page) => page.items);
        if (rows.length === 0) return empty;
        return (
          <div className="stack">
            <Table caption={caption} rows={rows} rowKey={rowKey} columns={columns} />
            {query.hasNextPage ? (
              <div>
                <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>{t("common.more")}</Button>
              </div>
            ) : null}
          </div>
        );
      }}
    </Loaded>
  );
}
