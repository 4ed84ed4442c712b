"""The answer to a usual request as a stream: what an Exchange does with one, for as long as nothing happens to it.

Fed by its Upstream like an exchange. Whatever is not usual makes it one (`FastExchange.become`), which then goes on with what is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth_gateway.chunks import ChunkReader
from berth_gateway.express import Express
from berth_gateway.framing import LAST_CHUNK, chunk
from berth_gateway.head import ResponseHead
from berth_gateway.meter import Counts
from berth_gateway.relay import EVENT_STREAM, Relay

if TYPE_CHECKING:
    from berth_gateway.fast_answer import UsualAnswer
    from berth_gateway.upstream import Upstream
    from berth_gateway.wire import Wire


class FastStream:
    """`held`: events before the first content, which wait with the head. `first`: seconds until that came; None before. `looked_at`,
    `told`: pieces at the last tick, and when their state was last put on record."""

    __slots__ = (
        "_head",
        "_owner",
        "_started",
        "_upstream",
        "_wire",
        "committed",
        "express",
        "first",
        "held",
        "last_write",
        "looked_at",
        "relay",
        "status",
        "told",
    )

    def __init__(
        self, owner: UsualAnswer, upstream: Upstream, wire: Wire, relay: Relay, head: bytes, started: float
    ) -> None:
        """`head`: of the answer, but for the time it took, which `%d` stands for."""
        self._owner = owner
        self._upstream = upstream
        self._wire = wire
        self._head = head
        self._started = started
        self.relay = relay
        self.express: Express | None = None
        self.held: list[bytes] = []
        self.committed = False
        self.first: float | None = None
        self.status = 0
        self.last_write = started
        self.looked_at = self.told = 0

    @property
    def reader(self) -> ChunkReader:
        return self.relay.reader

    # From the replica

    def answered(self, head: ResponseHead) -> None:
        if head.status != 200 or not head.content_type.startswith(EVENT_STREAM):
            self._owner.become().answered(head)
        else:
            self.status = 200

    def payload(self, data: bytes) -> None:
        relay = self.relay
        relayed = relay.feed(data)
        reader = relay.reader
        if self.first is None and reader.pieces:
            self.first = self._owner.now() - self._started
        out = relayed.out
        if relayed.done and not relayed.fault:
            if not self._end(out):
                self._owner.become().pass_on(relayed)
            return
        if relayed.fault:
            self._owner.become().pass_on(relayed)
            return
        if out:
            if self.committed:
                self._wire.write(chunk(b"".join(out)))
            else:
                self.held += out
                if reader.pieces or reader.complete:
                    self.committed = True
                    self._wire.write(self._begun(chunk(b"".join(self.held))))
                    self.held.clear()
        if reader.has_learned and self.committed and relay.flows and not reader.has_finished:
            if self.express is None:
                self.express = Express(reader, relay.before, self._wire.write)
            self._upstream.express = self.express

    def _begun(self, data: bytes) -> bytes:
        return self._head % int((self._owner.now() - self._started) * 1000) + data

    def _end(self, out: list[bytes]) -> bool:
        """[DONE]: whether the figures are such that they need not be looked at further; if so, it is accounted for and sent."""
        reader = self.relay.reader
        final = reader.final
        if final is None or not is_plausible(reader, final):
            return False
        first = self._owner.now() - self._started if self.first is None and reader.pieces else self.first
        if self.relay.lesson is not None:
            self._owner.teach(self.relay.lesson, self.express)
        data = b"".join([*self.held, *out, self.relay.last_events(final)])
        data = chunk(data) + LAST_CHUNK
        if not self.committed:
            data = self._begun(data)
        return self._owner.finish(final, first, data)

    def ended(self) -> None:
        """The engine's bytes ended without a [DONE]."""
        self._owner.become(attached=False).ended()

    def broken(self, *, answered: bool, reused: bool) -> None:
        self._owner.become(attached=False).broken(answered=answered, reused=reused)

    # From the clock

    def moved(self, now: float) -> None:
        """Notes whether something was written since the last look."""
        pieces = self.relay.reader.pieces
        if pieces != self.looked_at:
            self.looked_at, self.last_write = pieces, now


def is_plausible(reader: ChunkReader, final: Counts) -> bool:
    """Whether an answer is whole and its engine's figures need not be looked at further."""
    running = reader.running()
    if not reader.complete or final.completion < reader.pieces:
        return False
    return running is None or running.completion * 1.02 + 1 >= final.completion


def within(counts: Counts, prompt: int, completion: int) -> bool:
    """Whether an engine's figures are possible for a request that can have had at most so many tokens."""
    return (
        0 <= counts.cached <= counts.prompt <= prompt
        and 0 <= counts.completion <= completion
        and 0 <= counts.reasoning <= counts.completion
    )
