"""From an engine's bytes to what the client gets: events split, chunks rewritten or put together. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from berth_gateway.account import Facts, Reader
from berth_gateway.aggregate import Aggregate, usage_json
from berth_gateway.chunks import ChunkReader, EngineFault
from berth_gateway.errors import Refusal
from berth_gateway.meter import Counts
from berth_gateway.sse import EventSplitter, EventTooLarge
from berth_gateway.stream_form import MOST_EVENTS

EVENT_STREAM = b"text/event-stream"
DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Relayed:
    """`out`: bytes for a streaming client. `done`: the engine said so. `fault`: what came is not an answer."""

    out: list[bytes] = field(default_factory=list)
    done: bool = False
    fault: bool = False


class AnyRelay(Protocol):
    """One engine answer, whatever its form. A retry on another replica gets a new one.

    `media`: the content type an answer begins with, or it is none. `reader`: what it knows of tokens.
    """

    @property
    def media(self) -> bytes: ...

    @property
    def reader(self) -> Reader: ...

    def feed(self, data: bytes) -> Relayed:
        """Bytes of the answer, in any pieces."""

    def feed_framed(self, data: bytes) -> bytes | None:
        """`feed` for one whole HTTP chunk, if that is a short cut; None if not. Raises EngineFault."""

    def finish(self) -> Relayed:
        """At the end of the engine's bytes."""

    def last_events(self, usage: Counts) -> bytes:
        """What ends a stream."""

    def answer(self, usage: Counts) -> bytes | None:
        """The whole answer for a client that does not stream; None for one that does."""

    def error_event(self, refusal: Refusal) -> bytes:
        """A failure in the middle of a stream."""


class Relay:
    """Choices, as chat/completions and completions have them. A retry on another replica gets a new one."""

    __slots__ = (
        "_aggregate",
        "_before",
        "_created",
        "_include_usage",
        "_model",
        "_object",
        "_splitter",
        "answer_id",
        "lesson",
        "media",
        "reader",
    )

    def __init__(self, facts: Facts) -> None:
        endpoint, prepared = facts.endpoint, facts.prepared
        self.answer_id = f"{endpoint.id_prefix}{facts.event_id.replace('-', '')}"
        constant = {
            "id": self.answer_id,
            "object": endpoint.chunk_object,
            "created": int(facts.accepted_at),
            "model": facts.route.name,
        }
        self._begin(
            b"data: " + msgspec.json.encode(constant)[:-1] + b',"choices":', prepared.choices, prepared.include_usage
        )
        self._created, self._model = int(facts.accepted_at), facts.route.name
        self._object = endpoint.answer_object
        self._aggregate = None if prepared.stream else Aggregate(chat=endpoint.chat)

    def _begin(self, before: bytes, choices: int, include_usage: bool) -> None:
        self.media = EVENT_STREAM
        self.reader = ChunkReader(choices)
        self._splitter = EventSplitter()
        self._before = before
        self._include_usage = include_usage
        self.lesson: list[bytes] | None = (
            None  # events that were read, where somebody wants to learn from them (`stream_form`)
        )

    @classmethod
    def streaming(cls, before: bytes, *, include_usage: bool) -> Relay:
        """For a client that streams one choice, where it is known what each event begins with."""
        relay = cls.__new__(cls)
        relay._begin(before, 1, include_usage)
        relay._aggregate = None
        return relay

    def feed(self, data: bytes) -> Relayed:
        try:
            return self._events(self._splitter.feed(data))
        except EventTooLarge:
            return Relayed(fault=True)

    def goes_on(self, reader: ChunkReader) -> None:
        """Behind whole events that this reader has taken."""
        self.reader = reader
        self._splitter.goes_on()

    @property
    def before(self) -> bytes:
        """What each event for the client begins with."""
        return self._before

    @property
    def flows(self) -> bool:
        """Whether the next bytes begin an event, and go to a client that streams."""
        return self._aggregate is None and self._splitter.between_events

    def feed_framed(self, data: bytes) -> bytes | None:
        """`feed` for bytes with their HTTP chunk around them, if that is a short cut; None if they have to go the long way.

        Gives what a streaming client gets, empty for one that does not stream.
        """
        if not self._splitter.between_events:
            return None
        choices = self.reader.read_framed(data)
        if choices is None:
            return None
        if self._aggregate is None:
            return b"%b%b}\n\n" % (self._before, choices)
        self._aggregate.add(choices)
        return b""

    def finish(self) -> Relayed:
        """At the end of the engine's bytes."""
        return self._events(self._splitter.finish())

    def _events(self, events: list[bytes]) -> Relayed:
        reader, aggregate, before = self.reader, self._aggregate, self._before
        relayed = Relayed()
        out = relayed.out
        try:
            for data in events:
                if data == b"[DONE]":
                    relayed.done = True
                    relayed.fault = not reader.complete
                    break
                choices = reader.read(data)
                if self.lesson is not None and len(self.lesson) <= MOST_EVENTS:
                    self.lesson.append(data)
                if choices is None:
                    continue
                if aggregate is not None:
                    aggregate.add(choices)
                else:
                    out += (before, choices, b"}\n\n")
        except EngineFault:
            relayed.fault = True
        return relayed

    def last_events(self, usage: Counts) -> bytes:
        """What ends a stream: the usage, if the client asked for it, and [DONE]."""
        if not self._include_usage:
            return DONE
        return b'%b[],"usage":%b}\n\n%b' % (self._before, msgspec.json.encode(usage_json(usage)), DONE)

    def answer(self, usage: Counts) -> bytes | None:
        """The whole answer for a client that does not stream; None for one that does."""
        if self._aggregate is None:
            return None
        return self._aggregate.answer(
            id_=self.answer_id,
            object_=self._object,
            created=self._created,
            model=self._model,
            usage=usage,
        )

    def error_event(self, refusal: Refusal) -> bytes:
        return b"data: %b\n\n" % refusal.body()
