"""The planner's reasons: a stable code, a sentence with its numbers, and the numbers alone for translation."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec


class Reason(msgspec.Struct, frozen=True):
    code: str
    message: str
    params: dict[str, Any]


def reason(code: str, message: str, **params: Any) -> Reason:
    return Reason(code, message, {name: _plain(value) for name, value in params.items()})


def size(count: int) -> str:
    """Bytes for people."""
    if count >= 1 << 30:
        return f"{count / (1 << 30):.1f} GiB"
    return f"{-(-count // (1 << 20)):,} MiB"


def number(count: float) -> str:
    return f"{count:,.0f}" if count >= 10 else f"{count:.1f}"


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal) else value
