"""Which relay reads and writes the answers of an endpoint."""

from __future__ import annotations

from collections.abc import Callable

from berth_gateway.account import Facts
from berth_gateway.choices import ChoicesRelay
from berth_gateway.endpoint import Answers
from berth_gateway.messages_relay import MessagesRelay
from berth_gateway.relay import AnyRelay, Relay
from berth_gateway.responses_relay import ResponsesRelay
from berth_gateway.whole import RankingRelay, TokenCountRelay, TranscriptRelay, VectorsRelay

_RELAYS: dict[Answers, Callable[[Facts], AnyRelay]] = {
    Answers.CHOICES: Relay,
    Answers.MESSAGE: MessagesRelay,
    Answers.RESPONSE: ResponsesRelay,
    Answers.VECTORS: VectorsRelay,
    Answers.RANKING: RankingRelay,
    Answers.TRANSCRIPT: TranscriptRelay,
    Answers.TOKEN_COUNT: TokenCountRelay,
}


def relay_for(facts: Facts) -> AnyRelay:
    """A fresh one, for one answer."""
    if facts.prepared.whole:
        return ChoicesRelay(facts)
    return _RELAYS[facts.endpoint.answers](facts)
