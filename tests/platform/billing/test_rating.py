"""Rating by properties: exact, never negative, never billed twice, nothing rounded before the line."""

from __future__ import annotations

import random
from decimal import Decimal, Inexact
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from berth.billing.rating import (
    MAX_PRICE,
    MAX_QUANTITY,
    Charge,
    Prices,
    Usage,
    rate,
    text,
    to_micro,
    total,
)

settings.register_profile("rating", max_examples=200, deadline=None)
bounded = settings.get_profile("rating")

tokens = st.integers(0, MAX_QUANTITY)
price = st.decimals(0, MAX_PRICE, allow_nan=False, allow_infinity=False, places=12)
prices = st.builds(Prices, price, price, price)
DEFAULT = Prices(Decimal("0.000000150000"), Decimal("0.000000075000"), Decimal("0.000000600000"))


@st.composite
def usages(draw: st.DrawFn, **fixed: Any) -> Usage:
    prompt = draw(tokens)
    values = {
        "prompt_tokens": prompt,
        "cached_tokens": draw(st.integers(0, prompt)),
        "completion_tokens": draw(tokens),
        "first_token": draw(st.booleans()),
        "rejected": draw(st.booleans()),
    }
    return Usage(**values | fixed)


def exact(charges: tuple[Charge, ...]) -> Fraction:
    return sum((Fraction(charge.quantity) * Fraction(charge.unit_price) for charge in charges), Fraction(0))


@given(usages(), prices)
@bounded
def test_every_charge_is_quantity_times_price_in_rational_arithmetic(usage: Usage, at: Prices) -> None:
    charges = rate(usage, at)
    for charge in charges:
        assert Fraction(charge.amount) == Fraction(charge.unit_price) * charge.quantity
        assert charge.unit_price == getattr(at, charge.unit)
        assert charge.quantity > 0
        assert charge.amount >= 0
    assert Fraction(total(charge.amount for charge in charges)) == exact(charges)
    assert len({charge.unit for charge in charges}) == len(charges)


@given(usages(rejected=False), prices)
@bounded
def test_quantities_are_the_tokens_each_once(usage: Usage, at: Prices) -> None:
    """Cached is a part of the prompt and never added to it; the whole of the output is billed."""
    quantity = {charge.unit: charge.quantity for charge in rate(usage, at)}
    billed_prompt = quantity.get("input_token", 0) + quantity.get("cached_token", 0)
    if usage.first_token or usage.completion_tokens:
        assert billed_prompt == usage.prompt_tokens
        assert quantity.get("cached_token", 0) == usage.cached_tokens
    else:
        assert billed_prompt == 0
    assert quantity.get("output_token", 0) == usage.completion_tokens


@given(usages(rejected=True), prices)
@bounded
def test_a_rejected_request_costs_nothing(usage: Usage, at: Prices) -> None:
    assert rate(usage, at) == ()


@given(usages(first_token=False, completion_tokens=0), prices)
@bounded
def test_an_abort_during_prefill_costs_nothing(usage: Usage, at: Prices) -> None:
    assert rate(usage, at) == ()


@given(usages())
@bounded
def test_a_price_of_zero_is_a_charge_of_zero_and_keeps_its_quantity(usage: Usage) -> None:
    free = rate(usage, Prices(Decimal(0), Decimal(0), Decimal(0)))
    paid = rate(usage, DEFAULT)
    assert [(charge.unit, charge.quantity) for charge in free] == [(charge.unit, charge.quantity) for charge in paid]
    assert all(charge.amount == 0 for charge in free)


@given(usages(rejected=False, first_token=True), usages(rejected=False, first_token=True), prices)
@bounded
def test_costs_of_separate_requests_add_up(one: Usage, other: Usage, at: Prices) -> None:
    both = Usage(
        min(one.prompt_tokens + other.prompt_tokens, MAX_QUANTITY),
        min(one.cached_tokens + other.cached_tokens, MAX_QUANTITY),
        min(one.completion_tokens + other.completion_tokens, MAX_QUANTITY),
        first_token=True,
        rejected=False,
    )
    assume(both.prompt_tokens == one.prompt_tokens + other.prompt_tokens)
    assume(both.completion_tokens == one.completion_tokens + other.completion_tokens)
    assert exact(rate(both, at)) == exact(rate(one, at)) + exact(rate(other, at))


@given(st.lists(st.tuples(usages(), prices), max_size=30), st.randoms(use_true_random=False))
@bounded
def test_sums_do_not_depend_on_the_order(rows: list[tuple[Usage, Prices]], dice: random.Random) -> None:
    amounts = [charge.amount for usage, at in rows for charge in rate(usage, at)]
    shuffled = amounts.copy()
    dice.shuffle(shuffled)
    assert total(amounts) == total(shuffled)
    assert Fraction(total(amounts)) == sum((Fraction(amount) for amount in amounts), Fraction(0))


@given(st.decimals(-(10**20), 10**20, allow_nan=False, allow_infinity=False, places=12))
@bounded
def test_rounding_is_half_to_even_and_never_off_by_more_than_half(amount: Decimal) -> None:
    micro = to_micro(amount)
    rest = Fraction(amount) * 10**6 - micro
    assert abs(rest) <= Fraction(1, 2)
    if abs(rest) == Fraction(1, 2):
        assert micro % 2 == 0
    assert to_micro(amount.copy_negate()) == -micro, "a credit rounds as the debit does"


@pytest.mark.parametrize(
    ("amount", "micro"),
    [("0.0000005", 0), ("0.0000015", 2), ("0.0000025", 2), ("0.000000500001", 1), ("-0.0000015", -2), ("1", 10**6)],
)
def test_rounding_by_hand(amount: str, micro: int) -> None:
    assert to_micro(Decimal(amount)) == micro


def test_the_documented_example() -> None:
    """docs/billing.md: 1,000 prompt tokens of which 400 were cached, 200 completion tokens, at the default price."""
    charges = rate(Usage(1000, 400, 200, first_token=True, rejected=False), DEFAULT)
    assert [(charge.unit, charge.quantity, text(charge.amount)) for charge in charges] == [
        ("input_token", 600, "0.000090000000"),
        ("cached_token", 400, "0.000030000000"),
        ("output_token", 200, "0.000120000000"),
    ]
    assert to_micro(total(charge.amount for charge in charges)) == 240


@given(st.floats() | st.none() | st.text(max_size=3) | st.booleans() | st.decimals())
@bounded
def test_counts_are_integers_and_nothing_else(value: Any) -> None:
    with pytest.raises(TypeError):
        Usage(value, 0, 0, first_token=True, rejected=False)
    with pytest.raises(TypeError):
        Usage(0, 0, value, first_token=True, rejected=False)


@given(st.floats() | st.integers() | st.none() | st.text(max_size=3))
@bounded
def test_prices_and_amounts_are_decimals_and_nothing_else(value: Any) -> None:
    with pytest.raises(TypeError):
        Prices(value, Decimal(0), Decimal(0))
    with pytest.raises(TypeError):
        total([value])
    with pytest.raises(TypeError):
        to_micro(value)


@pytest.mark.threat("B3")
@pytest.mark.parametrize("value", ["-0.01", "NaN", "Infinity", "-Infinity", "0.0000000000001", "1000000000.1", "1E+10"])
def test_no_negative_endless_or_finer_price(value: str) -> None:
    with pytest.raises((ValueError, ArithmeticError)):
        Prices(Decimal(0), Decimal(value), Decimal(0))


@pytest.mark.threat("B3")
@pytest.mark.parametrize("counts", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (1, 2, 0), (MAX_QUANTITY + 1, 0, 0)])
def test_no_negative_or_endless_quantity(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="token"):
        Usage(*counts, first_token=True, rejected=False)


@pytest.mark.threat("B3")
def test_a_sum_that_would_lose_a_digit_raises_instead() -> None:
    with pytest.raises(Inexact):
        total([Decimal(10) ** 58, Decimal("0.000000000001")])


def test_the_largest_charge_fits_the_ledger() -> None:
    """NUMERIC(38,12) has 26 digits before the point."""
    (charge,) = rate(
        Usage(0, 0, MAX_QUANTITY, first_token=True, rejected=False), Prices(Decimal(0), Decimal(0), MAX_PRICE)
    )
    assert charge.amount < Decimal(10) ** 26


@pytest.mark.parametrize(
    ("value", "shown"), [("0", "0.000000000000"), ("1E+3", "1000.000000000000"), ("1E-12", "0.000000000001")]
)
def test_amounts_are_written_without_exponent(value: str, shown: str) -> None:
    assert text(Decimal(value)) == shown
