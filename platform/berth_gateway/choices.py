"""A chat or text completion that the engine gives in one piece: read once, its envelope written anew, its choices passed on. Pure."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from berth_gateway.account import Facts
from berth_gateway.aggregate import usage_json
from berth_gateway.chunks import FAILED, Usage
from berth_gateway.errors import Refusal
from berth_gateway.meter import Counts
from berth_gateway.relay import Relayed

MAX_ANSWER = 64 * 1024 * 1024  # bytes; an engine that writes more is at fault


class _Choice(Struct, gc=False):
    """Only what clients know of a choice goes on. Text stays as the engine wrote it."""

    finish_reason: str
    index: int = 0
    message: Raw | UnsetType = UNSET
    text: Raw | UnsetType = UNSET
    logprobs: Raw | UnsetType = UNSET


class _Answer(Struct, gc=False):
    choices: list[_Choice]
    usage: Usage | None = None
    error: Raw | None = None


decode_answer = msgspec.json.Decoder(_Answer).decode
_encode = msgspec.json.Encoder().encode


class ChoicesRelay:
    """`pieces` is the number of choices once they are there: each holds at least a token or its end."""

    __slots__ = ("_choices", "_data", "_facts", "complete", "final", "pieces")

    media = b"application/json"
    has_learned = False

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._data: bytes | bytearray = b""
        self._choices: list[_Choice] = []
        self.pieces = 0
        self.final: Counts | None = None
        self.complete = False

    @property
    def reader(self) -> ChoicesRelay:
        """Itself: there is nothing to know of tokens before the end."""
        return self

    def running(self) -> Counts | None:
        return None

    def feed(self, data: bytes) -> Relayed:
        if not self._data:
            self._data = data  # nearly always all of it
            return Relayed()
        if not isinstance(self._data, bytearray):
            self._data = bytearray(self._data)
        self._data += data
        return Relayed(fault=len(self._data) > MAX_ANSWER)

    def feed_framed(self, data: bytes) -> bytes | None:
        return None

    def finish(self) -> Relayed:
        data, self._data = self._data, b""
        try:
            if not data.isascii():
                data.decode()  # texts are passed on as they are, so nobody else looks whether they are UTF-8
            answer = decode_answer(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Relayed(fault=True)
        if answer.error is not None or not self._good(answer.choices):
            return Relayed(fault=True)
        self._choices = answer.choices
        self.final = answer.usage.counts() if answer.usage is not None else None
        self.pieces, self.complete = len(answer.choices), True
        return Relayed(done=True)

    def _good(self, choices: list[_Choice]) -> bool:
        chat = self._facts.endpoint.chat
        for choice in choices:
            content, mark = (choice.message, b"{") if chat else (choice.text, b'"')
            if choice.finish_reason in FAILED or content is UNSET or not bytes(content).startswith(mark):
                return False
        return bool(choices)

    def last_events(self, usage: Counts) -> bytes:
        return b""

    def answer(self, usage: Counts) -> bytes:
        facts = self._facts
        return b'{"id":"%b%b","object":"%b","created":%d,"model":%b,"choices":%b,"usage":%b}' % (
            facts.endpoint.id_prefix.encode(),
            facts.request_id[4:].encode(),
            facts.endpoint.answer_object.encode(),
            int(facts.accepted_at),
            _encode(facts.route.name),
            _encode(self._choices),
            _encode(usage_json(usage)),
        )

    def error_event(self, refusal: Refusal) -> bytes:
        return refusal.body()
