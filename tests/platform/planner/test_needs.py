"""What may be asked for at all."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from berth.planner.needs import BadNeeds, Needs, Pins, Quality, read_needs, read_pins


def test_nothing_asked_is_a_sensible_default() -> None:
    assert read_needs(None) == Needs() == read_needs({})
    assert read_pins(None) == Pins()
    asked = read_needs({"quality": "high", "max_price_per_hour": "0.5", "concurrency": 2})
    assert (asked.quality, asked.max_price_per_hour, asked.concurrency) == (Quality.HIGH, Decimal("0.5"), 2)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"context_length": 0}, "needs.context_length"),
        ({"context_length": "many"}, "needs.context_length"),
        ({"concurrency": 0}, "needs.concurrency"),
        ({"concurrency": 10_000}, "needs.concurrency"),
        ({"tokens_per_second": -1}, "needs.tokens_per_second"),
        ({"max_price_per_hour": "-1"}, "needs.max_price_per_hour"),
        ({"max_price_per_hour": "NaN"}, "needs.max_price_per_hour"),
        ({"quality": "superb"}, "needs.quality"),
        ({"gpu": "H100"}, "needs"),
    ],
)
def test_bad_needs_name_their_field(raw: dict[str, Any], field: str) -> None:
    with pytest.raises(BadNeeds) as bad:
        read_needs(raw)
    assert bad.value.field == field


@pytest.mark.threat("M9")
@pytest.mark.parametrize(
    "value", ["--trust-remote-code", "$(id)", "a\nb", "a\n", "", "LD_PRELOAD=/x", "../x", "x" * 64]
)
@pytest.mark.parametrize("pin", ["artefact_id", "engine", "tier"])
def test_pins_are_plain_names(pin: str, value: str) -> None:
    with pytest.raises(BadNeeds) as bad:
        read_pins({pin: value})
    assert bad.value.field == f"pins.{pin}"
