"""A statement as CSV, safe to open in a spreadsheet (threat B2)."""

from __future__ import annotations

import csv
import io

from berth.billing.rating import text
from berth.billing.statements import Month

COLUMNS = (
    "period", "deployment", "deployment_id", "unit", "price_version", "unit_price", "quantity", "exact", "amount_micro",
    "currency", "line_id",
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def cell(value: str) -> str:
    """Text that a spreadsheet would take for a formula gets an apostrophe in front. Numbers are never passed here: a credit
    begins with a minus and stays a number."""
    return f"'{value}" if value.startswith(_FORMULA) else value


def statement_csv(month: Month) -> str:
    """One row a line. `unit_price` and `exact` in the currency's main unit, `amount_micro` in millionths of it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for line in month.lines:
        writer.writerow(
            [
                month.period,
                cell(line.deployment_name),
                str(line.deployment_id),
                cell(line.unit),
                line.price_number,
                text(line.unit_price),
                line.quantity,
                text(line.exact),
                line.amount_micro,
                cell(month.currency),
                str(line.id),
            ]
        )
    return out.getvalue()
