"""The answer to a usual request as a stream whose form is known from the one before (`stream_form`): from its head to its last byte
without reading an event but the usage.

Whatever looks different goes on as a FastStream, in the state that it would be in. Only whole chunks are taken here, so that state is
always one between two chunks and two events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth_gateway.chunks import ChunkReader, EngineFault
from berth_gateway.express import Express
from berth_gateway.fast_stream import FastStream, is_plausible
from berth_gateway.framing import LAST_CHUNK, FramingError, chunk, chunk_size
from berth_gateway.relay import DONE, Relay

if TYPE_CHECKING:
    from berth_gateway.fast_answer import UsualAnswer
    from berth_gateway.stream_form import StreamForm
    from berth_gateway.upstream import Upstream, Wire

_nothing: list[bytes] = []
_NONE = Express(ChunkReader(), b"", _nothing.append)  # before the first event
_DONE_CHUNK = b"%x\r\n%b\r\n" % (len(DONE), DONE)
_USAGE = (
    b'%b[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},'
    b'"completion_tokens_details":{"reasoning_tokens":%d}}}\n\n%b'
)


class FlatStream:
    """The same attributes as FastStream, as far as others look at them. `before`: what each event for the client begins with."""

    __slots__ = (
        "_begun",
        "_express",
        "_finished",
        "_form",
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
        self._begun = self._finished = False  # whether an event has come, and the last of the choice
        self.committed = False  # whether the head has gone out
        self.first: float | None = None
        self.looked_at = self.told = 0

    # From the replica

    def came(self, data: bytes) -> None:
        """What no shorter way has taken, from a place between two chunks."""
        while data:
            line = data.find(b"\r\n", 0, 8)
            try:
                end = line + 4 + chunk_size(data[:line]) if line > 0 else len(data) + 1
            except FramingError:
                break
            left = self._take(data, end, line) if end <= len(data) else data
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

    def _take(self, data: bytes, end: int, line: int) -> bytes | None:
        """What is left of `data` behind its first chunk; all of it, if that is not of a known kind; None: the stream has ended."""
        each, rest = data[:end], data[end:]
        if not self._begun:
            return rest if self._begins(each) else data
        if self._finished:
            if each == _DONE_CHUNK:
                return None if self._ends(rest) else data
            return rest if self._closes(each, line) else data
        if not self.committed:
            return rest if self._waits(each) else data
        return rest if self._finishes(each) else self._express.take(data)

    def _begins(self, data: bytes) -> bool:
        """The first event."""
        kind = self._form.first
        found = kind.match(data)
        if found is None:
            return False
        prefix, fixed, figures = found.group("prefix", "fixed", "figures")
        reader, content = self.reader, kind.has_content(found)
        try:
            reader.began(prefix, fixed, figures, content=content)
        except EngineFault:
            return False
        self._begun = True
        express = self._express = Express(reader, self.before, self._wire.write)
        express.narrow(self._form.opening, self._form.closing)
        self._out = b"%b%b}\n\n" % (self.before, kind.choices(found))
        if content:
            self._commit()
        return True

    def _commit(self) -> None:
        self.first = seconds = self._owner.now() - self._started
        self.committed = True
        self._wire.write(self._owner.stream_head(seconds) + chunk(self._out))
        self._out = b""
        self._upstream.express = self._express

    def _waits(self, data: bytes) -> bool:
        """The next event, while the head waits for content."""
        event = self._express.event(data)
        if event is None:
            return False
        self._out += event
        self._commit()
        return True

    def _finishes(self, data: bytes) -> bool:
        """The last event of the choice."""
        kind, reader = self._form.finish, self.reader
        found = kind.match(data)
        if found is None:
            return False
        prefix, fixed, figures = found.group("prefix", "fixed", "figures")
        if not reader.follows(prefix, fixed):
            return False
        try:
            reader.finished(figures, content=kind.has_content(found))
        except EngineFault:
            return False
        self._finished = True
        self._upstream.express = None
        self._out = b"%b%b}\n\n" % (self.before, kind.choices(found))
        return True

    def _closes(self, data: bytes, line: int) -> bool:
        """An event behind the last of a choice, which has to be read: the usage."""
        start = line + 8
        if (
            data[line:start] != b"\r\ndata: "
            or data[-4:] != b"\n\n\r\n"
            or data.count(b"\n") != 4
            or data.count(b"\r") != 2
        ):
            return False
        try:
            choices = self.reader.read_whole(data[start:-4])
        except EngineFault:
            return False
        if choices is not None:
            self._out += b"%b%b}\n\n" % (self.before, choices)
        return True

    def _ends(self, rest: bytes) -> bool:
        """[DONE]. False if the figures have to be looked at; `rest` is what came behind it."""
        reader, first = self.reader, self.first
        final = reader.final
        if first is None or final is None or not is_plausible(reader, final):
            return False
        owner = self._owner
        if owner.shows:
            prompt, completion = final.prompt, final.completion
            data = self._out + _USAGE % (
                self.before, prompt, completion, prompt + completion, final.cached, final.reasoning, DONE
            )  # fmt: skip
        else:
            data = self._out + DONE
        upstream = self._upstream
        if rest != LAST_CHUNK:
            upstream.flows_on(None)
        if not owner.finish(final, first, chunk(data) + LAST_CHUNK):
            return False
        upstream.fast = None
        if rest == LAST_CHUNK:
            upstream.rests()
        elif rest:
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

    # From the clock

    def moved(self, now: float) -> None:
        """Notes whether something was written since the last look."""
        pieces = self.reader.pieces
        if pieces != self.looked_at:
            self.looked_at, self.last_write = pieces, now
