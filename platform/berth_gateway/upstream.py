"""One connection to a replica, without its socket: asks, reads the answer's framing, and goes back to the pool clean or not at all."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING

from berth_gateway.chunks import FINISHED
from berth_gateway.express import UNKNOWN, Express
from berth_gateway.form import form_of
from berth_gateway.framing import Body, ChunkedBody, FramingError, LengthBody, UntilClose, known_size
from berth_gateway.head import HeadError, ResponseHead, read_response
from berth_gateway.receiver import ignore, receiver
from berth_gateway.route import Address
from berth_gateway.wire import Asker, Wire

if TYPE_CHECKING:
    from berth_gateway.fast import FastExchange
    from berth_gateway.fast_answer import UsualAnswer
    from berth_gateway.flat_stream import FlatStream
    from berth_gateway.gateway import Gateway


JSON, EVENT_STREAM = b"application/json", b"text/event-stream"


class Upstream:
    """Asks one request at a time. A connection with bytes left over is never pooled."""

    __slots__ = (
        "_asker",
        "_body",
        "_buffer",
        "_express",
        "_gateway",
        "_keep",
        "_last_head",
        "_message",
        "_paused",
        "_receiver",
        "_reused",
        "_started",
        "fast",
        "received",
        "short_cut",
        "where",
        "wire",
    )

    def __init__(self, gateway: Gateway, where: Address) -> None:
        self._gateway = gateway
        self.where = where
        self.wire: Wire | None = None
        self._asker: Asker | None = None
        self._message: Callable[[], bytes] | None = None
        self._body: Body | None = None
        self._buffer = b""
        self._last_head: tuple[bytes, ResponseHead] | None = None  # engines send the same one again and again
        self._keep = False
        self._reused = False
        self._started = False  # a byte of the answer has come
        self._paused = False
        # Set by the asker while an answer flows: takes bytes that are one whole chunk, and says whether it has.
        self.short_cut: Callable[[bytes], bool] | None = None
        self._express: Express | None = None
        self._receiver: FunctionType | None = receiver(self)
        self.received: Callable[[bytes], None] = self._receiver  # what the connection calls
        # A usual request that it was given (`fast`), or its answer if that is a stream of a known form; nobody else asks then.
        self.fast: FastExchange | UsualAnswer | FlatStream | None = None

    @property
    def express(self) -> Express | None:
        """The same as `short_cut` for streams in the usual form. Only set while the next byte begins a chunk and an event."""
        return self._express

    @express.setter
    def express(self, express: Express | None) -> None:
        self._express = express
        if self._receiver is not None:
            self._receiver.__defaults__ = UNKNOWN if express is None else express.constants

    # From the asker

    def ask(self, asker: Asker, message: Callable[[], bytes]) -> None:
        """Sends a request, at once or as soon as the connection stands. `message` gives it then; nothing, if it is not to be sent."""
        self._asker = asker
        self._body, self._buffer, self._started, self._keep = None, b"", False, False
        if self.wire is None:
            self._message = message
            self._gateway.dial(self)
        else:
            self._reused = True
            self._send(self.wire, message)

    def _send(self, wire: Wire, message: Callable[[], bytes]) -> None:
        data = message()
        if data:
            wire.write(data)

    def continues(self, asker: Asker) -> None:
        """What was asked on this kept connection, and not been answered yet, is this asker's from here on."""
        self._asker = asker
        self._body, self._buffer, self._started, self._keep = None, b"", False, False
        self._reused = True

    def flows_on(self, asker: Asker | None) -> None:
        """The rest of a stream is this asker's, whose head and whole chunks of whose body have been taken already."""
        self.fast = None
        self._asker, self._buffer = asker, b""
        self._body, self._keep, self._started, self._reused = ChunkedBody(), True, True, True

    def rests(self) -> None:
        """An answer that was taken is whole."""
        self.fast = self.express = None
        self.resume()
        if not self._gateway.router.give_back(self.where, self):
            self.discard()

    @property
    def last_head(self) -> bytes:
        """Of the last answer whose head was read."""
        return b"" if self._last_head is None else self._last_head[0]

    def stream_head(self, data: bytes) -> bytes:
        """What `data` begins with, if that is the head of a stream in the usual form; else nothing. Raises HeadError."""
        head = self._head_of(data)
        if head is None or head.status != 200 or not head.chunked or not head.keep_alive:
            return b""
        return data[: head.consumed] if head.content_type.startswith(EVENT_STREAM) else b""

    def hand_to(self, asker: Asker) -> None:
        """The rest of the answer is this asker's."""
        self._asker = asker

    def release(self) -> None:
        """The asker has all it wants. The connection is kept if the rest of the answer ends as it should."""
        self._asker = self.short_cut = self.express = None
        self.resume()
        # Without a body it has ended already, and may serve the next.
        if self._body is not None and not self._body.done:
            self._gateway.finishing[self] = self._gateway.now()

    def abort(self) -> None:
        """Ends the connection at once, which tells the engine to stop generating."""
        self._asker = self.short_cut = self.express = None
        self._gateway.finishing.pop(self, None)
        if self.wire is not None:
            self.wire.abort()

    def discard(self) -> None:
        if self.wire is not None:
            self.wire.close()

    def pause(self) -> None:
        if self.wire is not None and not self._paused:
            self._paused = True
            self.wire.pause_reading()

    def resume(self) -> None:
        if self.wire is not None and self._paused:
            self._paused = False
            self.wire.resume_reading()

    # From the connection

    def opened(self, wire: Wire) -> None:
        self.wire = wire
        if self._asker is None:  # the client left while the connection was made
            wire.abort()
            return
        message, self._message = self._message, None
        if message is not None:
            self._send(wire, message)

    def failed(self) -> None:
        """No connection could be made."""
        asker, self._asker, self.short_cut, self.express = self._asker, None, None, None
        self._message = None
        if asker is not None:
            asker.broken(answered=False, reused=False)

    def came(self, data: bytes) -> None:
        """What `received` has not taken."""
        express = self._express
        if express is not None and (self.fast is None or FINISHED not in data):
            data = express.take(data)
            if not data:
                self.express = express  # its form may have been learned just now
                return
            self.express = None  # until the asker finds that it fits again
        if self.fast is not None:
            self.fast.came(data)
            return
        if self.short_cut is not None:
            data = self._take_whole_chunks(data)
            if not data:
                return
        if self._asker is None and self not in self._gateway.finishing:
            self._gateway.router.forget(self.where, self)  # an answer nobody asked for
            self.abort()
            return
        try:
            self._read(data)
        except (HeadError, FramingError):
            self._break()

    def _read(self, data: bytes) -> None:
        """The long way. Raises HeadError, FramingError."""
        self._started = True
        if self._body is None:
            rest = self._read_head(self._buffer + data if self._buffer else data)
            if rest is None:
                return
            data = rest
        body = self._body
        if body is None:
            return
        payload = body.feed(data)
        if payload and self._asker is not None:
            self._asker.payload(payload)
            if self.express is not None and not (isinstance(body, ChunkedBody) and body.between_chunks):
                self.express = None
        if body.done and body is self._body:
            self._finish(body)

    def _take_whole_chunks(self, data: bytes) -> bytes:
        """Gives whole chunks to the asker's short cut for as long as it takes them; returns what is left for the long way."""
        if not isinstance(self._body, ChunkedBody) or not self._body.between_chunks:
            return data
        at, size = 0, len(data)
        while at < size:
            line = data.find(b"\r\n", at, at + 8)
            length = known_size(data[at:line]) if line > at else None
            end = line + 4 + length if length else 0
            if not at < end <= size:
                break
            if self.short_cut is None:  # the answer ended at a fault: nothing behind it is wanted
                return b""
            if not self.short_cut(data[at:end] if at or end < size else data):
                break
            at = end
        return data[at:] if at else data

    def _read_head(self, data: bytes) -> bytes | None:
        """What follows the head; None while it is incomplete."""
        while True:
            head = self._head_of(data)
            if head is None:
                self._buffer = data
                return None
            data = data[head.consumed :]
            if head.status >= 200:
                break
        self._buffer = b""
        self._keep = head.keep_alive
        if head.chunked:
            self._body = ChunkedBody()
        elif head.status in (204, 304):
            self._body = LengthBody(0)
        elif head.length >= 0:
            self._body = LengthBody(head.length)
        else:
            self._body, self._keep = UntilClose(), False
        if self._asker is not None:
            self._asker.answered(head)
        return data

    def _head_of(self, data: bytes) -> ResponseHead | None:
        known = self._last_head
        if known is not None and data.startswith(known[0]):
            return known[1]
        head = read_response(data)
        if head is not None:
            raw = data[: head.consumed]
            self._last_head = raw, head
            if head.status == 200 and head.length >= 0 and head.keep_alive and head.content_type.startswith(JSON):
                self._gateway.router.spot(self.where).form = form_of(raw, head.length)
        return head

    def _finish(self, body: Body) -> None:
        asker, self._asker, self.short_cut, self.express = self._asker, None, None, None
        self._gateway.finishing.pop(self, None)
        self._body = None
        self.resume()
        if not self._keep or body.rest or not self._gateway.router.give_back(self.where, self):
            self.discard()
        if asker is not None:
            asker.ended()

    def lost(self) -> None:
        """The connection is gone."""
        if self.fast is not None and self._gateway.fast.due:
            self._gateway.fast.flush()  # its answer may have come
        self.wire = None
        if self.fast is not None:
            self.fast.become()
        # Neither holds this connection, so that its memory is free at once.
        self._receiver, self.received = None, ignore
        self._gateway.finishing.pop(self, None)
        asker, self._asker, self.short_cut, self.express = self._asker, None, None, None
        if asker is None:
            self._gateway.router.forget(self.where, self)
        elif isinstance(self._body, UntilClose):
            asker.ended()
        else:
            asker.broken(answered=self._started, reused=self._reused)

    def _break(self) -> None:
        asker, self._asker, self.short_cut, self.express = self._asker, None, None, None
        self.abort()
        if asker is not None:
            asker.broken(answered=True, reused=self._reused)
