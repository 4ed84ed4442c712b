"""One client connection, without its socket: requests in (`incoming`), answers out (`outgoing`), one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth_gateway import admit, dispatch
from berth_gateway.account import Facts
from berth_gateway.demand import demand_of
from berth_gateway.errors import Refusal
from berth_gateway.exchange import Answering, Exchange
from berth_gateway.fan import Fan
from berth_gateway.fast import FastExchange
from berth_gateway.fast_path import MOST_TOGETHER
from berth_gateway.incoming import Incoming
from berth_gateway.limits import Permit, Waiting
from berth_gateway.outgoing import State
from berth_gateway.padding import Padded
from berth_gateway.paths import Place
from berth_gateway.recording import recording_of
from berth_gateway.repeat import Known
from berth_gateway.wire import Wire

if TYPE_CHECKING:
    from berth_gateway.gateway import Gateway

MAX_PIPELINED = 64 * 1024  # bytes of later requests that wait; then reading stops
MAX_LINGER = 1024 * 1024  # bytes read and dropped after a refusal, so that the client sees the answer
LINGER_SECONDS = 2.0
ABANDON_SECONDS = 60.0  # a client that does not take its last answer
SLOW_AFTER, SLOWEST = 10.0, 1024  # after so many seconds a body must have come at so many bytes a second


_HEAD, _COMING = State.HEAD, State.COMING


class Client(Incoming):
    """What goes on between the two: who may ask what, and what becomes of it."""

    def __init__(
        self, gateway: Gateway, *, loopback: bool = True, admin: bool = False, peer: str | None = None
    ) -> None:
        super().__init__(gateway, loopback=loopback, admin=admin, peer=peer)
        self._path = gateway.fast
        self._fast: FastExchange | None = None  # takes what is usual
        # The same, if its first head is the one that came last on any connection
        self._guess: FastExchange | None = None
        self._kept = b""  # the body of a request that is to be recorded
        self._dropped = 0
        self._waits: tuple[Facts, Waiting] | None = None  # for what limits and budgets say

    # From the connection

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self._gateway.clients.add(self)
        latest = self._gateway.fast.heads.latest
        if latest is not None and not self._admin:
            self._guess = FastExchange(self._gateway, self, latest.again_elsewhere())

    def received(self, data: bytes) -> None:
        fast = self._fast or self._meet(data)
        if self._state is _HEAD and fast is not None and not self._buffer:
            path = self._path
            came = path.came
            self._state = _COMING
            came.append((fast, data))
            if not path.due:
                path.later()
            elif len(came) >= MOST_TOGETHER:
                path.flush()
            return
        if self._state is _COMING:
            self._path.flush()
        self._came(data)

    def arrived(self, fast: FastExchange, data: bytes) -> None:
        """What may be a usual request has its turn."""
        self._state = _HEAD
        try:
            if not fast.take(data):
                self._came(data)
        except BaseException:
            self._abort()
            raise

    def _came(self, data: bytes) -> None:
        if self._state is State.LINGER:
            self._dropped += len(data)
            if self._dropped > MAX_LINGER:
                self._abort()
            return
        self._buffer = self._buffer + data if self._buffer else data
        if self._state is State.BUSY:
            if len(self._buffer) > MAX_PIPELINED and not self._paused and self._wire is not None:
                self._paused = True
                self._wire.pause_reading()
            return
        self._run()

    def lost(self) -> None:
        """The connection is gone, or the client has closed its side, which means the same here."""
        if self._path.due:
            self._path.flush()  # what it sent is taken in, and its answer may have come
        self._gateway.clients.discard(self)
        self._state = State.CLOSED
        self._wire = None
        self._buffer = b""
        self._payload.clear()
        exchange, self._exchange = self._exchange, None
        waits, self._waits = self._waits, None
        if exchange is not None:
            exchange.client_gone()
        elif waits is not None:
            waits[1].cancelled = True

    def full(self) -> None:
        if self._exchange is not None:
            self._exchange.client_full()

    def drained(self) -> None:
        if self._exchange is not None:
            self._exchange.client_drained()

    # What is usual

    def _meet(self, data: bytes) -> FastExchange | None:
        """The first bytes of a connection: its head may be one that other connections have sent."""
        gateway = self._gateway
        if self._known is not None or self._buffer or self._admin or self._state is not _HEAD:
            return None
        view, wall = gateway.store.view, gateway.wall()
        guess, self._guess = self._guess, None
        if guess is not None and view is not None:
            known = guess.known
            if known.form.body(data) is not None and known.caller_now(view, wall) is not None:
                self._known, self._fast = known, guess
                guess.meet(known.caller)
                return guess
        found = gateway.fast.heads.find(data, view, wall)
        if found is None:
            return None
        self._remember(found)
        if self._fast is not None:
            self._fast.meet(found.caller)
        return self._fast

    def _remember(self, known: Known | None) -> None:
        self._known = known
        if known is None or not known.is_usual:
            self._fast = None
        elif self._fast is None:
            self._fast = FastExchange(self._gateway, self, known)
        else:
            self._fast.know(known)

    # What was asked

    def _dispatch(self, body: bytes) -> None:
        if self._place is None:
            return
        if self._place.kind == "generate":
            self._generate(self._place, body)
            return
        now = dispatch.answer_at_once(self._gateway, self._place, self._caller)
        self._reply(now.status, now.content_type, now.body, now.headers)

    def _generate(self, place: Place, data: bytes) -> None:
        if place.endpoint is None or self._caller is None:
            return
        gateway, fast = self._gateway, self._fast
        if fast is not None:
            fast.meet(self._caller)
            if fast.admit(data):
                return
        patience = admit.patience_of(self._head)
        head, tracing = self._head, gateway.tracing
        trace = tracing.begin(head.traceparent) if tracing is not None and head is not None else None
        facts = dispatch.admit_request(gateway, place.endpoint, self._caller, self._request_id, data, patience, trace)
        self._kept = data if recording_of(facts) is not None else b""
        found = gateway.gate.enter(demand_of(facts), self._decided)
        if isinstance(found, Waiting):
            self._waits = facts, found
        else:
            self._begin(facts, found)

    def _decided(self, verdict: Permit | Refusal) -> None:
        """The answer for a request that had to wait for it."""
        waits, self._waits = self._waits, None
        if isinstance(verdict, Refusal):
            self.refuse(verdict)
        elif waits is not None:
            try:
                self._begin(waits[0], verdict)
            except Refusal as refusal:
                self.refuse(refusal)

    def _begin(self, facts: Facts, permit: Permit) -> None:
        self._limits = permit.lines
        run = Fan if facts.prepared.branches else Exchange
        answering: Answering = Padded(self) if facts.caller.org.padded else self
        kept, self._kept = self._kept, b""
        if kept:
            answering = self._gateway.records.around(answering, facts, kept)
        exchange = self._exchange = run(self._gateway, answering, facts, permit)
        try:
            exchange.start()
        except Refusal:
            self._exchange = None
            raise

    # Answering

    def _finish(self, *, close: bool) -> None:
        """After the last byte of an answer: the next request, or the end."""
        wire = self._wire
        if wire is None:
            return
        if close:
            self._set_state(State.LINGER)
            self._buffer = b""
            wire.write_eof()
            return
        self._set_state(State.HEAD)
        self._head = None
        self._size = 0
        if self._paused:
            self._paused = False
            wire.resume_reading()
        if self._buffer:
            self._run()

    def _abort(self) -> None:
        wire = self._wire
        if wire is not None:
            wire.abort()

    # The clock

    def tick(self, now: float) -> None:
        waited = now - self._since
        config = self._gateway.config
        if self._state is State.HEAD:
            if self._buffer and waited > config.head:
                self._begin_request(None)
                self.refuse(Refusal("slow_request", "The request's head did not arrive in time."))
            elif not self._buffer and (waited > config.idle or self._gateway.draining):
                self._close()
        elif self._state is State.BODY:
            if waited > SLOW_AFTER and self._size < SLOWEST * (waited - SLOW_AFTER):
                self.refuse(Refusal("slow_request", "The request's body arrives too slowly."))
        elif self._state is State.LINGER:
            if waited > ABANDON_SECONDS:
                self._abort()
            elif waited > LINGER_SECONDS:
                self._close()

    def leave(self) -> None:
        """The gateway stops: connections between requests are closed."""
        if self._state is State.HEAD:
            self._close()

    def _close(self) -> None:
        if self._wire is not None:
            self._state = State.LINGER
            self._wire.close()  # what is still to be sent goes out first
