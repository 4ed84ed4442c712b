"""Which relay reads and writes the answers of an endpoint."""

from __future__ import annotations

from collections.abc import Callable

from berth_gateway.account import Facts
from berth_gateway.endpoint import Answers
from berth_gateway.relay import AnyRelay, Relay

_RELAYS: dict[Answers, Callable[[Facts], AnyRelay]] = {
    Answers.CHOICES: Relay,
}


def relay_for(facts: Facts) -> AnyRelay:
    """A fresh one, for one answer."""
    return _RELAYS[facts.endpoint.answers](facts)
