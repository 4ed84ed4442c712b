"""Everything one gateway process shares: snapshot, spool, router, counters, clocks. Knows no sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
from uuid_utils import uuid7

from berth_gateway import admit, gauges, rounds
from berth_gateway.account import Facts
from berth_gateway.config import Config
from berth_gateway.contract import GatewayReport, Route, UsageEvent
from berth_gateway.errors import Refusal, not_ready
from berth_gateway.exchange import Exchange
from berth_gateway.exchange_state import ExchangeState
from berth_gateway.fan import Fan
from berth_gateway.fast import FastExchange
from berth_gateway.fast_path import FastPath
from berth_gateway.head import RequestHead
from berth_gateway.limits import Gate
from berth_gateway.load import Loads
from berth_gateway.logs import Log
from berth_gateway.places import Places
from berth_gateway.recording import Records
from berth_gateway.route import Address, Router
from berth_gateway.shadow import Shadows
from berth_gateway.slots import Slots
from berth_gateway.snapshot import Store, Verdict, View
from berth_gateway.spool import Spool
from berth_gateway.suspects import STRIKES, Suspects
from berth_gateway.telemetry import Telemetry
from berth_gateway.trace import Times, Trace
from berth_gateway.tracing import Tracing

if TYPE_CHECKING:
    from berth_gateway.client import Client
    from berth_gateway.upstream import Upstream


class Gateway:
    """The state behind all connections. `dial` connects an Upstream; the event loop's side sets it."""

    def __init__(
        self,
        config: Config,
        store: Store,
        spool: Spool,
        *,
        log: Log | None = None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.store = store
        self.spool = spool
        self.log = log or Log()
        self.now = now
        self.wall = wall
        self.router = Router()
        self.gate = Gate(now, wall)
        self.places = Places(self)
        self.slots = Slots(self.router, now, self.places.waiting, self.places.freed)
        self.slots.number = max(0, config.worker - 1)
        self.raw_loads = Loads(wall, self.places.waiting)
        self.shadows = Shadows(self)
        self.tracing: Tracing | None = None
        if config.otlp is not None:
            self.tracing = Tracing(config.otlp, config.name, lambda how, n: self.telemetry.traces.add(how, by=n))
        self.records = Records(now, lambda reason: self.telemetry.records.add(reason))
        self.suspects: Suspects[Address] = Suspects()
        self.raw_telemetry = Telemetry(gauges.of_process(self), gauges.of_deployments(self))
        self.encode = msgspec.json.Encoder().encode
        self.clients: set[Client] = set()
        self.exchanges: set[Exchange | Fan | FastExchange] = set()
        self.finishing: dict[Upstream, float] = {}
        self._draining = False
        self._room = spool.has_room()
        self.started_at = wall()
        self.dial: Callable[[Upstream], None] = _no_dial
        self.progress_at = 0.0  # when the state of what runs was last put on record
        self._last_verdict: Verdict | None = None
        self.fast = FastPath(self)
        self.gate.changed = self.fast.forget
        spool.usual = lambda: dict(x.opened() for x in self.exchanges if isinstance(x, FastExchange))

    # What usual requests have done is counted a little later, but before anybody looks

    @property
    def telemetry(self) -> Telemetry:
        self.fast.work()
        return self.raw_telemetry

    @property
    def loads(self) -> Loads:
        self.fast.work()
        return self.raw_loads

    @property
    def draining(self) -> bool:
        """The gateway stops: what comes now is refused."""
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._draining = draining
        self.fast.look()

    @property
    def room(self) -> bool:
        """Whether the spool has room for what running requests will write."""
        return self._room

    @room.setter
    def room(self, room: bool) -> None:
        self._room = room
        self.fast.look()

    # Ids

    def new_request_id(self) -> str:
        return f"req_{uuid7().hex}"

    def event_id(self, request_id: str) -> str:
        """The usage event's UUID: the same as in the request id, so that one leads to the other."""
        h = request_id[4:]
        return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"

    # What requests ask

    def usable_view(self) -> View:
        """Raises Refusal: without a fresh snapshot nobody can be judged, which is no fault of the key."""
        view = self.store.usable(self.wall())
        if view is None:
            if self.store.view is None:
                raise not_ready("The gateway is starting and does not know any keys yet. Try again shortly.")
            raise not_ready("The gateway has been without contact to its control plane for too long. Try again later.")
        return view

    def check_accepting(self) -> None:
        if self.draining:
            raise not_ready("The gateway is stopping. Try again.")
        if not self.room:
            raise not_ready("The gateway cannot record usage right now. Try again shortly.")

    def check_ready(self) -> None:
        self.usable_view()
        self.check_accepting()

    def metrics(self) -> bytes:
        return self.telemetry.text()

    # What requests tell

    def refused(self, refusal: Refusal, request_id: str, head: RequestHead | None) -> None:
        self.telemetry.refused.add(refusal.code)
        if self.config.log_requests:
            self.log.info(
                "refused",
                request_id=request_id,
                client_request_id=head.client_request_id if head else None,
                status=refusal.status,
                code=refusal.code,
            )

    def settled(self, exchange: ExchangeState | Fan, event: UsageEvent, *, breach: bool) -> None:
        """The one event of a request. On disk before the last bytes of its answer go out."""
        self.spool.settle(event)
        self.gate.settle(exchange.permit, event)
        self.exchanges.discard(exchange)
        self.loads.settled(event)
        if exchange.facts.trace is not None:
            self._traced(exchange, exchange.facts.trace, event)
        if self.records.open:
            self.records.settled(event)
        self.telemetry.settled(event, breach=breach)
        if self.config.log_requests:
            self.log.request(exchange.facts.request_id, event)

    def _traced(self, exchange: ExchangeState | Fan, trace: Trace, event: UsageEvent) -> None:
        started = exchange.facts.started
        queued, sent = (None if at is None else at - started for at in exchange.waited)
        first = None if event.first_token_ms is None else event.first_token_ms / 1000
        times = Times(queued, sent, first, event.duration_ms / 1000)
        if self.tracing is not None:
            self.tracing.ended(trace, exchange.facts.request_id, event, times)

    def dropped(self, exchange: ExchangeState | Fan) -> None:
        """A request that ended before any engine saw it: it was never accepted."""
        self.records.forget(exchange.facts.event_id)
        self.gate.cancel(exchange.permit)
        self.exchanges.discard(exchange)

    # Snapshots

    def offer_snapshot(self, packed: bytes) -> Verdict:
        """Applies a snapshot if it is good; then whoever may no longer call is cut."""
        verdict = self.store.offer(packed, self.wall())
        self.telemetry.snapshots.add(verdict)
        view = self.store.view
        if verdict is Verdict.APPLIED:
            self.snapshot_applied()
        elif verdict is not Verdict.CURRENT and verdict is not self._last_verdict:
            self.log.error("snapshot_refused", reason=verdict, version=view.version if view else None)
        self._last_verdict = verdict
        return verdict

    def snapshot_applied(self) -> None:
        """The store has a new view: from now on requests are judged by it, and running ones are judged again."""
        view = self.store.view
        if view is not None:
            self.log.info("snapshot_applied", epoch=view.epoch, version=view.version)
            self.fast.forget()
            self.router.keep_only(view.routes.values())
            self.limits_changed()
            self._cut_revoked(view)
            self._routes_changed(view)

    def limits_changed(self) -> None:
        """A view was applied: its limits and budgets hold from the next request on."""
        view = self.store.view
        if view is not None:
            self.gate.apply(view.members, view.budgets)
            self.slots.apply(view.routes.values())

    def engine_died(self, facts: Facts, where: Address) -> None:
        """A request was with an engine that broke off. One that has left its route was asked to end: that is no crash."""
        key_id, deployment = facts.caller.key.key_id, facts.route.deployment_id
        if self.places.lists(facts, where):
            strikes = self.suspects.died(key_id, deployment, where, self.now())
            if strikes == STRIKES:
                self.log.error("key_held", key_id=key_id, deployment_id=deployment, count=strikes)

    def check_held(self, key_id: str, route: Route) -> None:
        """Raises Refusal for a key in whose requests engines of this deployment died one after the other."""
        left = self.suspects.held_for(key_id, route.deployment_id, self.now())
        if left > 0:
            raise Refusal(
                "key_held",
                f"This API key is held for {route.name} for another {left / 60:.0f} min: {STRIKES} of its engines stopped while "
                "requests of this key ran. Look for what those requests have in common, or write to your operator.",
            )

    def _routes_changed(self, view: View) -> None:
        self.places.changed()
        known = {route.deployment_id for route in view.routes.values()}
        self.loads.keep_only(known)
        self.suspects.tidy(self.now())
        self.telemetry.keep_only(known)

    def _cut_revoked(self, view: View) -> None:
        now = self.wall()
        for exchange in list(self.exchanges):
            if not admit.still_admitted(view, exchange.facts.caller, exchange.facts.route, now):
                exchange.cut("invalid_api_key", "The API key may no longer be used for this request.")

    def report(self) -> GatewayReport:
        view = self.store.view
        return GatewayReport(
            gateway=self.config.name,
            epoch=view.epoch if view else "",
            version=view.version if view else 0,
            at=self.wall(),
            started_at=self.started_at,
            in_flight=len(self.exchanges),
            spool_pending=self.spool.pending,
        )

    # The clock

    def tick(self) -> None:
        """`steps` at once."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """What is looked after several times a second (`rounds`)."""
        return rounds.steps(self)

    def cut_all(self) -> None:
        """The end of a drain: what still runs is ended with an error its client can see."""
        for exchange in list(self.exchanges):
            exchange.cut("service_unavailable", "The gateway is stopping.")
        self.shadows.end_all()


def _no_dial(upstream: Upstream) -> None:
    upstream.failed()
