"""Kubernetes' quantities: "500m", "2", "16Gi", "1e3"."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final

_BINARY: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i)|([numkMGTPE]?)|[eE]([+-]?\d{1,2}))")


def quantity(text: object) -> Decimal:
    """The exact number. Raises ValueError for what is no quantity."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError("That is no quantity.")
    number, binary, decimal, exponent = match.groups()
    if binary:
        return Decimal(number) * _BINARY[binary]
    return Decimal(number).scaleb(int(exponent) if exponent else _DECIMAL[decimal or ""])


def whole(text: object) -> int:
    """Rounded down: what there is at least (of bytes, of devices)."""
    return int(quantity(text).to_integral_value(ROUND_FLOOR))


def needed(text: object) -> int:
    """Rounded up: what is taken at most."""
    return int(quantity(text).to_integral_value(ROUND_CEILING))


def milli(text: object) -> int:
    """Thousandths, rounded up: for CPU."""
    return int((quantity(text) * 1000).to_integral_value(ROUND_CEILING))


def mebibytes(size: int) -> str:
    """Bytes as a quantity, rounded up to whole MiB."""
    return f"{-(-size // (1 << 20))}Mi"
