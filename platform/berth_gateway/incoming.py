"""The reading half of a client's connection: heads, and the bodies behind them, one request after the other. Without sockets."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from berth_gateway import admit, dispatch
from berth_gateway.errors import Refusal
from berth_gateway.framing import ChunkedBody, FramingError, LengthBody
from berth_gateway.head import HeadError, RequestHead, read_request
from berth_gateway.outgoing import Outgoing, State, broken_request
from berth_gateway.paths import Place
from berth_gateway.repeat import Known, remember

if TYPE_CHECKING:
    from berth_gateway.gateway import Gateway


class Incoming(Outgoing):
    """Reads requests strictly one at a time; what is pipelined waits in the buffer."""

    def __init__(self, gateway: Gateway, *, loopback: bool, admin: bool, peer: str | None) -> None:
        super().__init__(gateway)
        self._loopback = loopback
        self._peer = peer
        self._admin = admin
        self._known: Known | None = None  # the last head, if it may come again
        self._head_known = 0  # bytes of an incomplete head that have been looked at
        self._place: Place | None = None
        self._payload = bytearray()
        self._size = 0
        self._running = False

    @abstractmethod
    def _remember(self, known: Known | None) -> None:
        """The head that this connection's next requests will probably have."""

    @abstractmethod
    def _dispatch(self, body: bytes) -> None:
        """A request is whole. Raises Refusal."""

    def _run(self) -> None:
        """Works off the buffer as far as it goes. Answers given on the way come back here only through the loop."""
        if self._running:
            return
        self._running = True
        try:
            while self._buffer or self._state is State.BODY:
                if self._state is State.HEAD:
                    if not self._read_head():
                        break
                elif self._state is State.BODY:
                    if not self._read_body():
                        break
                else:
                    break
        finally:
            self._running = False

    def _read_head(self) -> bool:
        known = self._known
        if known is not None and not self._head_known:
            again = known.again(self._buffer)
            if again is not None:
                return self._read_known(known, again)
        try:
            head = read_request(self._buffer, self._head_known)
        except HeadError as fault:
            self._begin_request(None)
            self.refuse(broken_request(fault.code))
            return False
        if head is None:
            if not self._head_known:
                self._since = self._gateway.now()  # the clock for a head starts with its first byte
            self._head_known = len(self._buffer)
            return False
        data, self._buffer = self._buffer, self._buffer[head.consumed :]
        self._begin_request(head)
        try:
            place, caller = dispatch.judge_head(
                self._gateway, head, admin=self._admin, loopback=self._loopback, peer=self._peer
            )
        except Refusal as refusal:
            self.refuse(refusal)
            return self._state is State.HEAD
        self._place, self._caller = place, caller
        view = self._gateway.store.view
        if caller is not None and view is not None and place.kind == "generate":
            self._remember(remember(data, head, place, caller, view))
            if self._known is not None:
                self._gateway.fast.heads.keep(self._known)
        self._body = ChunkedBody() if head.chunked else LengthBody(max(0, head.length))
        self._set_state(State.BODY)
        if head.expects_continue and head.has_body and not self._buffer and self._wire is not None:
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _read_known(self, known: Known, head: RequestHead) -> bool:
        """As `_read_head`, for a head that has been judged before."""
        gateway = self._gateway
        self._buffer = self._buffer[head.consumed :]
        self._begin_request(head)
        try:
            if head.length > gateway.config.max_body:
                raise dispatch.too_large(gateway)
            view, now = gateway.usable_view(), gateway.wall()
            caller = known.caller_now(view, now)
            if caller is None:
                caller = known.caller = admit.identify(view, head, now)
                admit.check_address(caller, self._peer, head, gateway.config.trusted_proxies)
                known.view = view
        except Refusal as refusal:
            self._known = None
            self.refuse(refusal)
            return self._state is State.HEAD
        self._place, self._caller = known.place, caller
        self._body = LengthBody(head.length)
        self._set_state(State.BODY)
        return True

    def _begin_request(self, head: RequestHead | None) -> None:
        self._request_id = self._gateway.new_request_id()
        self._head, self._caller, self._place = head, None, None
        self._head_known = 0
        self._payload.clear()
        self._size = 0
        self._streaming = False
        self._limits = b""

    def _read_body(self) -> bool:
        data, self._buffer = self._buffer, b""
        try:
            payload = self._body.feed(data)
        except FramingError:
            self.refuse(broken_request("bad_request"))
            return False
        self._size += len(payload)
        announced = self._body.announced if isinstance(self._body, ChunkedBody) else 0
        if self._size + announced > self._gateway.config.max_body:
            self.refuse(dispatch.too_large(self._gateway))
            return False
        if not self._body.done:
            self._payload += payload
            return False
        self._buffer = self._body.rest
        body = bytes(self._payload + payload) if self._payload else payload
        self._payload = bytearray()
        self._set_state(State.BUSY)
        try:
            self._dispatch(body)
        except Refusal as refusal:
            self.refuse(refusal)
        return self._state is State.HEAD
