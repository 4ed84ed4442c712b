"""The answering half of a client's connection: heads, bodies, pieces of streams. Without sockets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

from berth_gateway import cors, dialect, dispatch
from berth_gateway.admit import Caller
from berth_gateway.errors import Refusal
from berth_gateway.framing import LAST_CHUNK, Body, ChunkedBody, LengthBody, chunk
from berth_gateway.head import RequestHead, write_response, write_stream
from berth_gateway.wire import Wire

if TYPE_CHECKING:
    from berth_gateway.exchange import Exchange
    from berth_gateway.fan import Fan
    from berth_gateway.fast import FastExchange
    from berth_gateway.gateway import Gateway


class State(Enum):
    """Where a connection is."""

    HEAD = auto()  # between requests, or within a head
    COMING = auto()  # something has come that may be a usual request (`fast`), and waits for what comes with it
    BODY = auto()
    BUSY = auto()  # an exchange runs
    LINGER = auto()  # answered, will close, drops what still comes
    CLOSED = auto()


_HEAD, _BUSY = State.HEAD, State.BUSY  # an enum's members are not found as fast


class Outgoing(ABC):
    """Writes the answer to one request at a time; what a request is, the reading half knows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._wire: Wire | None = None
        self._state = State.HEAD
        self._buffer = b""  # what has come and has not been read
        self._body: Body = LengthBody(0)  # of the request
        self._since = gateway.now()  # when the state began
        self._head: RequestHead | None = None
        self._caller: Caller | None = None
        self._exchange: Exchange | Fan | FastExchange | None = None
        self._limits = b""  # header lines about limits and budgets
        self._request_id = ""
        self._streaming = False
        self._paused = False  # what waits behind this request is enough

    @abstractmethod
    def _finish(self, *, close: bool) -> None:
        """After the last byte of an answer."""

    def refuse(self, refusal: Refusal) -> None:
        """Answers with an error. What is left of the request's body cannot be skipped safely, so the connection then ends."""
        self._exchange = None
        unread = self._state in (State.HEAD, State.BODY) and self._head is not None and not self._skip_body()
        close = refusal.close or unread or self._head is None
        self._gateway.refused(refusal, self._request_id, self._head)
        status, body = dialect.error_answer(refusal, self._head, self._request_id)
        self._reply(status, dispatch.JSON, body, refusal.headers(), close=close)

    def _skip_body(self) -> bool:
        """Whether the rest of this request's body is at hand and has been passed over."""
        head = self._head
        if head is None:
            return False
        if self._state is State.HEAD:
            if head.chunked:
                return False
            self._body = LengthBody(max(0, head.length))
        if isinstance(self._body, ChunkedBody) or head.expects_continue:
            return not head.has_body
        self._body.feed(self._buffer)
        if not self._body.done:
            return False
        self._buffer = self._body.rest
        return True

    def answer(self, body: bytes) -> None:
        self._exchange = None
        self._reply(200, dispatch.JSON, body, self._timing())

    def _reply(self, status: int, kind: bytes, body: bytes, more: bytes = b"", *, close: bool = False) -> None:
        wire = self._wire
        if wire is None:
            return
        head = self._head
        close = close or head is None or not head.keep_alive or self._gateway.draining
        data = write_response(status, kind, len(body), self._request_id, close=close, more=more + self._common())
        wire.write(data if head is not None and head.method == "HEAD" else data + body)
        self._finish(close=close)

    def stream(self, data: bytes, *, last: bool) -> None:
        wire, head = self._wire, self._head
        if wire is None or head is None:
            return
        chunked = head.minor == 1
        out = chunk(data) if chunked else data
        if last and chunked:
            out += LAST_CHUNK
        if not self._streaming:
            self._streaming = True
            close = not head.keep_alive or self._gateway.draining
            out = (
                write_stream(self._request_id, chunked=chunked, close=close, more=self._timing() + self._common()) + out
            )
        if last:
            self._exchange = None
        wire.write(out)
        if last:
            self._finish(close=not head.keep_alive or self._gateway.draining)

    def chunk_writer(self) -> Callable[[bytes], None] | None:
        wire, head = self._wire, self._head
        return wire.write if wire is not None and self._streaming and head is not None and head.minor == 1 else None

    # Usual requests (`fast`)

    def began_fast(self, exchange: FastExchange, now: float) -> None:
        """A usual request runs."""
        self._state, self._since, self._exchange = _BUSY, now, exchange

    @property
    def wire(self) -> Wire | None:
        return self._wire

    def answered_fast(self, reply: bytes, now: float) -> None:
        """Sends the answer, which is whole and accounted for."""
        self._exchange = None
        wire = self._wire
        if wire is None:
            return
        try:
            wire.write(reply)
        except (RuntimeError, OSError):
            return  # it is closing; that it is gone will be told
        self._state, self._since, self._head = _HEAD, now, None
        if self._buffer or self._paused:
            self._finish(close=False)

    def continues(
        self,
        exchange: Exchange,
        head: RequestHead,
        caller: Caller,
        request_id: str,
        limits: bytes,
        *,
        streaming: bool,
    ) -> None:
        """A request that began as a usual one is an exchange like any other from here on."""
        self._exchange, self._head, self._caller = exchange, head, caller
        self._request_id, self._limits, self._streaming = request_id, limits, streaming

    # What all answers have

    def _timing(self) -> bytes:
        return self._limits + b"openai-processing-ms: %d\r\n" % ((self._gateway.now() - self._since) * 1000)

    def _common(self) -> bytes:
        head = self._head
        lines = dialect.lines(head, self._request_id)
        if head is None or head.origin is None:
            return lines
        return lines + cors.lines(head.origin, listed=self._known_origin())

    def _known_origin(self) -> bool:
        return self._head is not None and cors.is_listed(self._head.origin, self._gateway.store.view, self._caller)

    def _set_state(self, state: State) -> None:
        self._state = state
        self._since = self._gateway.now()


def broken_request(code: str) -> Refusal:
    if code == "headers_too_large":
        return Refusal(code, "The request's headers are larger than 16 KiB or more than 100.")
    if code == "request_too_large":
        return Refusal(code, "The body is too large.")
    return Refusal("bad_request", "The request is not well-formed HTTP/1.1.")
