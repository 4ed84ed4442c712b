"""What a usual request is while it runs, and how it becomes an exchange like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from berth_gateway import admit
from berth_gateway.account import Facts, bill_of, event_of
from berth_gateway.contract import Outcome, Replica, UsageEvent
from berth_gateway.demand import demand_of
from berth_gateway.endpoint import Prepared
from berth_gateway.exchange import Exchange
from berth_gateway.fast_path import FastPath
from berth_gateway.fast_stream import FastStream
from berth_gateway.flat_stream import FlatStream
from berth_gateway.grant import Grant
from berth_gateway.limits import Permit
from berth_gateway.pools import Kind
from berth_gateway.records import OPEN, event_id_of, frame, opened_event
from berth_gateway.sample import Shape
from berth_gateway.target import Target

if TYPE_CHECKING:
    from berth_gateway.client import Client
    from berth_gateway.gateway import Gateway
    from berth_gateway.repeat import Known
    from berth_gateway.upstream import Upstream


class UsualRequest:
    """One connection's usual requests, one after the other. Stands among the gateway's exchanges while one runs."""

    __slots__ = (
        "_client",
        "_cost",
        "_created",
        "_crowds",
        "_flow",
        "_form_told",
        "_gateway",
        "_grant",
        "_ill",
        "_known",
        "_limit",
        "_lines",
        "_message",
        "_part",
        "_path",
        "_running",
        "_shape",
        "_shown",
        "_slot",
        "_started",
        "_stream",
        "_strikes",
        "_target",
        "_till",
        "_told",
        "_units",
        "_upstream",
        "_wall",
        "request_id",
    )

    def __init__(self, gateway: Gateway, client: Client, known: Known) -> None:
        self._gateway = gateway
        self._path: FastPath = gateway.fast
        self._till = gateway.fast.till
        self._client = client
        self._known = known
        self._running = gateway.exchanges
        self._crowds = gateway.places.rooms
        self._ill = gateway.router.health.ill
        self._strikes = gateway.suspects.strikes
        self._part = b""  # of an answer
        self._upstream: Upstream | None = None
        self._grant: Grant | None = None
        self._target: Target | None = None
        self._shape: Shape | None = None  # of the request, where units, cost, stream, shown and limit are as it says
        self._units = self._cost = self._limit = self._slot = 0
        self._wall = self._started = 0.0
        self._message = self.request_id = self._created = b""
        self._stream = False
        self._shown: Any = UNSET  # whether a client that streams wants to see the usage
        self._flow: FastStream | FlatStream | None = None
        # x-ratelimit-*: what is left of requests and of tokens, for the form to say; otherwise the lines
        self._told: tuple[int, int] | None = None
        self._form_told = self._lines = b""

    @property
    def known(self) -> Known:
        return self._known

    # Becoming an exchange like any other

    def _hand_over(self, data: bytes) -> None:
        upstream = self._upstream
        self.become()
        if upstream is not None:
            upstream.received(data)

    @property
    def still(self) -> bool:
        """Whether it still runs, once what has come is taken in: its answer may be among that."""
        if self._path.due:
            self._path.flush()
        return self._grant is not None

    def become(self, *, attached: bool = True) -> Exchange:
        """The exchange that this request would be by now, had it come the long way. `attached`: it still has its connection."""
        self._path.send()  # what has come behind it stays where it is
        grant, target, upstream = self._grant, self._target, self._upstream
        gateway, client = self._gateway, self._client
        if grant is None or target is None or upstream is None:
            raise RuntimeError("nothing runs here")
        facts = self._facts(grant)
        permit = self._permit(grant, facts)
        event_id, record = self.opened()
        gateway.spool.open_records.setdefault(event_id, record)
        exchange = Exchange(gateway, client, facts, permit)
        flow, self._flow = self._flow, None
        if isinstance(flow, FlatStream):
            flow = flow.thawed()
        upstream.fast = None
        exchange.take_over(target.replica, upstream if attached else None, flow)
        self._running.discard(self)
        self._running.add(exchange)
        streaming = flow is not None and flow.committed
        client.continues(exchange, self._known.head, grant.caller, facts.request_id, permit.lines, streaming=streaming)
        self._grant = self._target = self._upstream = None
        part, self._part = self._part, b""
        if part and attached:
            upstream.received(part)
        return exchange

    def _ask_longer(self, grant: Grant, replica: Replica) -> None:
        """Goes on as an exchange that has this replica, and no connection to it yet. Limits have been taken."""
        self._till.close()
        grant.counts.in_flight -= 1  # it is counted when it is sent
        grant.waited[0] -= 1
        facts = self._facts(grant)
        permit = self._permit(grant, facts)
        exchange = Exchange(self._gateway, self._client, facts, permit)
        self._client.continues(
            exchange, self._known.head, grant.caller, facts.request_id, permit.lines, streaming=False
        )
        exchange.start_with(replica)

    def _facts(self, grant: Grant) -> Facts:
        request_id = self.request_id.decode()
        prepared = Prepared(
            body=self._message.partition(b"\r\n\r\n")[2],
            stream=self._stream,
            include_usage=self._shown is True,
            choices=1,
            most_tokens=self._limit,
            path=grant.endpoint.path,
            whole=not self._stream,
        )
        return Facts(
            request_id=f"req_{request_id}",
            event_id=event_id_of(self.request_id),
            caller=grant.caller,
            route=grant.route,
            endpoint=grant.endpoint,
            prepared=prepared,
            accepted_at=self._wall,
            started=self._started,
            patience=admit.patience_of(self._known.head),
        )

    def opened(self) -> tuple[bytes, bytes]:
        """The event's id, and its record as it was when the request came."""
        target = self._target
        if target is None:
            raise RuntimeError("nothing runs here")
        common = (target.stream_stencil if self._stream else target.stencil).common
        event = opened_event(common, self.request_id, self._wall)
        return event.event_id.encode(), frame(OPEN, event)

    def _permit(self, grant: Grant, facts: Facts) -> Permit:
        self._till.close()
        permit = Permit(demand_of(facts), grant.budgets)
        for pool in grant.pools:
            pool.fold()
            permit.takes.append((pool, self._slot, self._units if pool.kind is Kind.TOKENS else 1))
        permit.purses = list(grant.purses)
        permit.lines = self._limit_lines()
        return permit

    def _limit_lines(self) -> bytes:
        """x-ratelimit-*."""
        return self._lines if self._told is None else self._form_told % self._told

    def not_recorded(self) -> None:
        """The disk has no room for it: nobody is asked."""
        exchange = self.become()
        self._gateway.spool.open_records.pop(exchange.facts.event_id.encode(), None)
        exchange.not_recorded()

    # From the client, the clock and the gateway, as an exchange has them

    @property
    def facts(self) -> Facts:
        if self._grant is None:
            raise RuntimeError("nothing runs here")
        return self._facts(self._grant)

    @property
    def reserved_tokens(self) -> int:
        return self._units

    def client_gone(self) -> None:
        if self.still:
            self.become().client_gone()

    def client_full(self) -> None:
        if self._upstream is not None:
            self._upstream.pause()

    def client_drained(self) -> None:
        if self._upstream is not None:
            self._upstream.resume()

    def now(self) -> float:
        return self._path.now()

    def tick(self, now: float) -> None:
        config, flow = self._gateway.config, self._flow
        last_write, first = self._started, None
        if flow is not None:
            flow.moved(now)
            last_write, first = flow.last_write, flow.first
        waited = now - self._started
        silent = first is None and waited > config.first_byte
        late = silent or waited > config.total or (self._stream and now - last_write >= config.keepalive)
        if late and self.still:
            self.become().tick(now)

    def cut(self, code: str, sentence: str) -> None:
        if self.still:
            self.become().cut(code, sentence)

    def progress(self) -> UsageEvent | None:
        """The event as it would be if the gateway died now; None when nothing has changed since the last."""
        flow, grant = self._flow, self._grant
        if flow is None or grant is None or flow.reader.pieces == flow.told:
            return None
        reader = flow.reader
        flow.told = reader.pieces
        facts, status = self._facts(grant), 200 if flow.committed else 503
        seconds = self._path.now() - self._started
        return event_of(
            facts, self._gateway.config.name, Outcome.INTERRUPTED, status, bill_of(facts, reader), seconds=seconds, first_token=flow.first
        )  # fmt: skip
