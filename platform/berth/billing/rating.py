"""What a usage event costs: exact arithmetic on integers and decimals, no I/O, no Django, no floats.

A price has at most 12 decimal places and a quantity is an integer, so their product has at most 12 places and is exact: nothing is
rounded here. Rounding happens once, per statement line (`to_micro`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import (
    ROUND_HALF_EVEN,
    Clamped,
    Context,
    Decimal,
    DivisionByZero,
    FloatOperation,
    Inexact,
    InvalidOperation,
    Overflow,
)
from typing import Literal

Unit = Literal["input_token", "cached_token", "output_token"]

PLACES = 12
MAX_QUANTITY = 10**12  # of one event's unit
MAX_PRICE = Decimal(10**9)  # per token, in the currency's main unit
MICRO = Decimal(10**6)

# Wide enough for every sum that fits NUMERIC(38,12); what would lose a digit raises instead.
EXACT = Context(
    prec=60,
    rounding=ROUND_HALF_EVEN,
    traps=[Inexact, FloatOperation, InvalidOperation, DivisionByZero, Overflow, Clamped],
)
_ROUNDING = Context(
    prec=60, rounding=ROUND_HALF_EVEN, traps=[FloatOperation, InvalidOperation, DivisionByZero, Overflow, Clamped]
)


@dataclass(frozen=True)
class Prices:
    """Per token, in the currency's main unit; at least 0, at most 12 places."""

    input_token: Decimal
    cached_token: Decimal
    output_token: Decimal

    def __post_init__(self) -> None:
        for price in (self.input_token, self.cached_token, self.output_token):
            _check_price(price)


@dataclass(frozen=True)
class Usage:
    """Counts of one event. `cached_tokens` is a part of `prompt_tokens`; reasoning is inside `completion_tokens` already.

    `first_token`: whether a first token came to be. `rejected`: the replica found the request wrong.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token: bool
    rejected: bool

    def __post_init__(self) -> None:
        for count in (self.prompt_tokens, self.cached_tokens, self.completion_tokens):
            if type(count) is not int:
                raise TypeError(f"Token counts are integers, not {type(count).__name__}.")
            if not 0 <= count <= MAX_QUANTITY:
                raise ValueError(f"A token count must be between 0 and {MAX_QUANTITY}.")
        if self.cached_tokens > self.prompt_tokens:
            raise ValueError("Cached tokens are a part of the prompt's and cannot be more.")


@dataclass(frozen=True)
class Charge:
    """`quantity` × `unit_price` = `amount`, exactly."""

    unit: Unit
    quantity: int
    unit_price: Decimal
    amount: Decimal


def rate(usage: Usage, prices: Prices) -> tuple[Charge, ...]:
    """The charges of an event, one per unit of which there is any; () when it costs nothing because nothing is billable.

    - A rejected request is never billed.
    - Prompt tokens are billed only if a first token exists: an abort during prefill costs nothing.
    - Cached prompt tokens are billed at their own rate and not again as input.
    - A price of zero gives a charge of zero: the quantity still shows on the statement.
    """
    if usage.rejected:
        return ()
    has_token = usage.first_token or usage.completion_tokens > 0
    parts: tuple[tuple[Unit, int, Decimal], ...] = (
        ("input_token", usage.prompt_tokens - usage.cached_tokens if has_token else 0, prices.input_token),
        ("cached_token", usage.cached_tokens if has_token else 0, prices.cached_token),
        ("output_token", usage.completion_tokens, prices.output_token),
    )
    return tuple(
        Charge(unit, quantity, price, EXACT.multiply(price, Decimal(quantity)))
        for unit, quantity, price in parts
        if quantity > 0
    )


def total(amounts: Iterable[Decimal]) -> Decimal:
    """The exact sum; raises decimal.Inexact rather than lose a digit."""
    result = Decimal(0)
    for amount in amounts:
        if not isinstance(amount, Decimal):
            raise TypeError(f"Amounts are Decimal, not {type(amount).__name__}.")
        result = EXACT.add(result, amount)
    return result


def to_micro(exact: Decimal) -> int:
    """Integer micro-units (a millionth of the currency's main unit), half to even. The only place where money is rounded."""
    if not isinstance(exact, Decimal):
        raise TypeError(f"Amounts are Decimal, not {type(exact).__name__}.")
    return int(_ROUNDING.multiply(exact, MICRO).to_integral_value(rounding=ROUND_HALF_EVEN, context=_ROUNDING))


def text(exact: Decimal) -> str:
    """As the API writes it: plain digits with 12 places, never an exponent."""
    return f"{exact:.{PLACES}f}"


def _check_price(price: Decimal) -> None:
    if not isinstance(price, Decimal):
        raise TypeError(f"Prices are Decimal, not {type(price).__name__}.")
    if not price.is_finite() or not 0 <= price <= MAX_PRICE:
        raise ValueError(f"A price must be between 0 and {MAX_PRICE}.")
    exponent = price.normalize(EXACT).as_tuple().exponent
    if isinstance(exponent, int) and exponent < -PLACES:
        raise ValueError(f"A price has at most {PLACES} decimal places.")
