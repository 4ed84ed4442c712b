"""The answer to a usual request as a stream whose form is known from the one before (`stream_form`): from its head to its last byte
without reading an event but the usage.

Whatever looks different goes on as a FastStream, in the state that it would be in. Only whole chunks are taken here, so that state is
always one between two chunks and two events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from berth_gateway.chunks import ChunkReader, EngineFault
from berth_gateway.express import Express
from berth_gateway.fast_stream import FastStream, is_plausible
from berth_gateway.framing import LAST_CHUNK, FramingError, chunk, chunk_size
from berth_gateway.relay import DONE, Relay

if TYPE_CHECKING:
    import re

    from berth_gateway.exchange import Exchange
    from berth_gateway.fast_answer import UsualAnswer
    from berth_gateway.stream_form import StreamForm
    from berth_gateway.upstream import Upstream
    from berth_gateway.wire import Wire

_nothing: list[bytes] = []
_NONE = Express(ChunkReader(), b"", _nothing.append)  # before the first event
_DONE_CHUNK = b"%x\r\n%b\r\n" % (len(DONE), DONE)
_END = _DONE_CHUNK + LAST_CHUNK
_USAGE = (
    b'%b[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},'
    b'"completion_tokens_details":{"reasoning_tokens":%d}}}\n\n%b'
)


class FlatStream:
    """The same attributes as FastStream, as far as others look at them. `before`: what each event for the client begins with."""

    __slots__ = (
        "_begun",
        "_express",
        "_form",
        "_next",
        "_out",
        "_owner",
        "_started",
        "_upstream",
        "_wire",
        "before",
        "committed",
        "first",
        "last_write",
        "looked_at",
        "reader",
        "told",
    )

    def __init__(
        self, owner: UsualAnswer, upstream: Upstream, wire: Wire, form: StreamForm, before: bytes, started: float
    ) -> None:
        self._owner, self._upstream, self._wire, self._form = owner, upstream, wire, form
        self.before = before
        self._started = self.last_write = started
        self.reader = ChunkReader()
        self._express = _NONE
        self._out = b""  # events that wait: for the first content, or for what came with them
        self._begun = self.committed = False  # whether an event has come, and whether the head has gone out
        self._next: Callable[[bytes], bytes | None] = self._begins  # what takes what will come
        self.first: float | None = None
        self.looked_at = self.told = 0

    # From the replica

    def came(self, data: bytes) -> None:
        """What no shorter way has taken, from a place between two chunks."""
        while data:
            left = self._next(data)
            if left is None:
                return
            if len(left) == len(data):
                break
            data = left
        if self.committed and self._out:
            self._wire.write(chunk(self._out))
            self._out = b""
        if data:
            self._owner.thaw().received(data)

    # Each of these takes chunks off the front of `data` and returns what is left; all of it, if they are of another kind than is known

    def _begins(self, data: bytes) -> bytes:
        """The first event."""
        kind = self._form.first
        found = kind.match(data)
        if found is None or not is_chunk(found):
            return data
        prefix, fixed, figures = found.group("prefix", "fixed", "figures")
        reader, content = self.reader, kind.has_content(found)
        try:
            reader.began(prefix, fixed, figures, content=content)
        except EngineFault:
            return data
        self._begun = True
        self._express = self._form.express(reader, self.before, self._wire.write)
        self._out = b"%b%b}\n\n" % (self.before, kind.choices(found))
        if content:
            self._commit()
        else:
            self._next = self._waits
        return data[found.end() :]

    def _commit(self) -> None:
        self.first = seconds = self._owner.now() - self._started
        self.committed = True
        out = self._out
        self._wire.write(b"%b%x\r\n%b\r\n" % (self._owner.stream_head(seconds), len(out), out))
        self._out = b""
        self._upstream.express = self._express
        self._next = self._flows

    def _waits(self, data: bytes) -> bytes:
        """The event behind it, while the head waits for content."""
        each = first_chunk(data)
        event = self._express.event(each) if each else None
        if event is None:
            return data
        self._out += event
        self._commit()
        return data[len(each) :]

    def _flows(self, data: bytes) -> bytes:
        """The last event of the choice, or texts before it."""
        kind, reader = self._form.finish, self.reader
        found = kind.match(data)
        if found is None or not is_chunk(found):
            return self._express.take(data)
        prefix, fixed, figures = found.group("prefix", "fixed", "figures")
        if not reader.follows(prefix, fixed):
            return data
        try:
            reader.finished(figures, content=kind.has_content(found))
        except EngineFault:
            return data
        self._upstream.express = None
        self._out = b"%b%b}\n\n" % (self.before, kind.choices(found))
        self._next = self._closes
        return data[found.end() :]

    def _closes(self, data: bytes) -> bytes | None:
        """The usage, and [DONE]; None if that was the end."""
        if data == _END:
            return None if self._ends(LAST_CHUNK) else data
        size = len(data) - len(_END)
        each = data[:size] if size > 0 and data[size:] == _END else first_chunk(data)
        if each == _DONE_CHUNK:
            return None if self._ends(data[len(each) :]) else data
        line = each.find(b"\r\n", 0, 8)
        start = line + 8
        if (
            each[:start] != b"%x\r\ndata: " % (len(each) - line - 4) or each[-4:] != b"\n\n\r\n"
            or each.count(b"\n") != 4 or each.count(b"\r") != 2
        ):  # fmt: skip
            return data
        try:
            choices = self.reader.read_whole(each[start:-4])
        except EngineFault:
            return data
        if choices is not None:
            self._out += b"%b%b}\n\n" % (self.before, choices)
        return data[len(each) :]

    def _ends(self, rest: bytes) -> bool:
        """[DONE]. False if the figures have to be looked at; `rest` is what came behind it."""
        reader, first, owner, upstream = self.reader, self.first, self._owner, self._upstream
        final = reader.final
        if first is None or final is None or not is_plausible(reader, final):
            return False
        if owner.shows:
            prompt, completion = final.prompt, final.completion
            data = self._out + _USAGE % (
                self.before, prompt, completion, prompt + completion, final.cached, final.reasoning, DONE
            )  # fmt: skip
        else:
            data = self._out + DONE
        if not owner.finish(final, first, b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data), whole=rest == LAST_CHUNK):
            return False
        if rest and rest != LAST_CHUNK:
            upstream.received(rest)
        return True

    def _as_long(self) -> FastStream:
        """The same, read event by event from here on."""
        owner = self._owner
        relay = Relay.streaming(self.before, include_usage=owner.shows)
        if self._begun:
            relay.goes_on(self.reader)
        else:
            relay.lesson = owner.lesson()
        head = b"" if self.committed else owner.stream_head(None)
        flow = FastStream(owner, self._upstream, self._wire, relay, head, self._started)
        if self._out:
            flow.held = [self._out]
        flow.committed, flow.first, flow.status = self.committed, self.first, 200
        flow.express = self._express if self._begun else None
        flow.last_write, flow.looked_at, flow.told = self.last_write, self.looked_at, self.told
        return flow

    def thawed(self) -> FastStream:
        """What goes on in its place, and is told by the connection of what comes."""
        flow = self._as_long()
        self._upstream.express = None
        self._upstream.flows_on(flow)
        return flow

    def become(self) -> Exchange:
        """The exchange that its request would be by now."""
        return self._owner.become()

    # From the clock

    def moved(self, now: float) -> None:
        """Notes whether something was written since the last look."""
        pieces = self.reader.pieces
        if pieces != self.looked_at:
            self.looked_at, self.last_write = pieces, now


def first_chunk(data: bytes) -> bytes:
    """The whole chunk at the start of `data`; nothing if there is none."""
    line = data.find(b"\r\n", 0, 8)
    try:
        size = chunk_size(data[:line]) if line > 0 else 0
    except FramingError:
        return b""
    end = line + 4 + size
    return data[:end] if size and end <= len(data) else b""


def is_chunk(found: re.Match[bytes]) -> bool:
    """Whether what was found is a chunk of the size that it says."""
    line = found["size"]
    return len(line) < 8 and line == b"%x" % (found.end() - len(line) - 4)
