"""What the usual requests of one gateway process share: whether they may take the short way, and the work that is done for many at once.

Between two waits of the event loop several requests come and several answers end. Their spool records are written in one go, and
only then their bytes go out: the requests to engines, the answers to clients. What is counted and logged about them is worked off
later still, together (docs/gateway.md, "The usual request").
"""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom
from struct import Struct
from typing import TYPE_CHECKING, cast

from berth_gateway import answers, arrivals, grant, records
from berth_gateway.admit import Caller
from berth_gateway.answers import Answer
from berth_gateway.arrivals import Arrival
from berth_gateway.endpoint import Endpoint
from berth_gateway.grant import Grant
from berth_gateway.heads import Heads
from berth_gateway.records import SETTLED, Opened, Part, ended_event, frame, frame_batch
from berth_gateway.spool import SpoolFull
from berth_gateway.stencil import Ended, Stencil
from berth_gateway.till import Till

if TYPE_CHECKING:
    from berth_gateway.client import Client
    from berth_gateway.fast import FastExchange
    from berth_gateway.gateway import Gateway
    from berth_gateway.upstream import Upstream

MOST_GRANTS = 4000  # of about 5 KB
IDS = 256
randbytes = SystemRandom().randbytes
_WIDTH = 20
_cut = Struct(f"{_WIDTH}s" * IDS).unpack
_RANDOM = (*range(1, 4), *range(5, 20))  # columns of random digits
MOST_ENDED = 128  # answers whose counting waits
MOST_TOGETHER = 16  # requests, or answers, that are taken in together: the first of a burst must not wait for its last


class FastPath:
    """`soon` calls a function before the event loop waits again; without a loop, at once. `generation` changes whenever grants may
    not hold any more. `open`: whether requests may come this way at all."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.soon: Callable[[Callable[[], None]], object] = _at_once
        self.generation = 0
        self.open = False
        self.connected = False
        self.funded = False  # whether what is held of budgets may be used
        self.workers = 1
        self.most_body = gateway.config.max_body
        self.due = False
        self.till = Till()
        self.came: list[Arrival] = []  # from clients, and not looked at yet
        self.answers: list[Answer] = []  # the same from replicas
        self.running, self.crowds = gateway.exchanges, gateway.places.rooms
        self.ill, self.strikes = gateway.router.health.ill, gateway.suspects.strikes
        self.touched: list[Stencil] = []  # those of requests that are not on record yet
        self.asks: list[tuple[Upstream, bytes]] = []
        self.replies: list[tuple[Client, bytes]] = []
        self.ended: list[tuple[Stencil, list[Ended]]] = []  # on record, and not counted and logged yet
        self._answers = 0  # in `ended`
        self.spool = gateway.spool
        self.open_records = gateway.spool.open_records
        self.draining = False
        self.ids: list[bytes] = []  # what follows the moment in request ids that nobody has yet
        # Milliseconds since 1970, what request ids begin with then, and the second
        self.ms, self.moment, self.second = 0, b"", b"0"
        self.now, self.wall = gateway.now, gateway.wall
        self._grants: dict[tuple[bytes, str], dict[str, Grant]] = {}
        self._count = 0
        self.heads = Heads()

    # Who may come this way

    def forget(self) -> None:
        """Keys, routes, limits, prices or the link to Valkey may have changed."""
        self.till.close()
        self.generation += 1
        self._grants = {}
        self._count = 0
        self.heads.forget()
        self.look()

    def look(self) -> None:
        """Whether requests may come this way now; looked at several times a second and whenever something of it changes."""
        self.till.close()
        gateway = self._gateway
        self.heads.tidy(self.now())
        self.draining = gateway.draining
        self.connected, self.workers = gateway.gate.connected, gateway.gate.workers
        self.funded = self.connected or gateway.gate.alone
        self.open = gateway.room and not gateway.draining and gateway.store.usable(gateway.wall()) is not None

    def grants_of(self, caller: Caller, endpoint: Endpoint) -> dict[str, Grant]:
        """By the names of models."""
        name = (caller.key.digest, endpoint.name)
        found = self._grants.get(name)
        if found is None:
            found = self._grants[name] = {}
        return found

    def grant(self, caller: Caller, endpoint: Endpoint, model: str) -> Grant | None:
        """A grant that holds now, kept for the next request; None if there is none."""
        if self._count >= MOST_GRANTS:
            self.forget()
        found = grant.find(self._gateway, caller, endpoint, model, self.wall())
        if found is not None:
            self.grants_of(caller, endpoint)[model] = found
            self._count += 1
        return found

    def opens(self, grant: Grant, units: int, cost: int, now: float, wall: float) -> bool:
        """Whether the limits and budgets of a grant have room for a request; then it may be taken from `till`."""
        if grant.purses and not self.funded:
            return False
        till = self.till
        until = now + min(grant.until - wall, 1.0)
        till.open(grant, now, until, connected=self.connected, workers=self.workers)
        return till.left >= 1 and till.tokens >= units and till.money >= cost

    # Request ids are UUIDs of version 7: milliseconds since 1970, then 72 random bits

    def moment_of(self, ms: int) -> bytes:
        """What the request ids of this millisecond begin with."""
        self.ms, self.moment, self.second = ms, b"%012x" % ms, b"%d" % (ms // 1000)
        return self.moment

    def make_ids(self) -> None:
        """Many at once: a column of their digits is one stroke."""
        row = bytearray(b"7...9...............") * IDS
        digits, width = randbytes(IDS * 9).hex().encode(), len(_RANDOM)
        for at, column in enumerate(_RANDOM):
            row[column::_WIDTH] = digits[at::width]
        self.ids += _cut(row)

    # What is done for many at once

    def later(self) -> None:
        """`flush` is due before the event loop waits again."""
        if not self.due:
            self.due = True
            self.soon(self.flush)

    def flush(self) -> None:
        """Takes in what has come, puts on record what begins and what has ended by it, and then sends it on."""
        self.due = True  # as what is asked for meanwhile is done here
        try:
            if self.answers:
                answers.settle(self)
            if self.came:
                arrivals.admit(self)
        except BaseException:
            self.due = False
            self.later()
            raise
        self.due = False
        self.send()

    def opened(self, stencil: Stencil, some: list[Opened]) -> None:
        """These are to go on record as begun."""
        if not stencil.opened and not stencil.ended:
            self.touched.append(stencil)
        stencil.opened += some

    def closed(self, stencil: Stencil, some: list[Ended]) -> None:
        """These are to go on record as ended."""
        if not stencil.opened and not stencil.ended:
            self.touched.append(stencil)
        stencil.ended += some

    def send(self) -> None:
        """Puts on record what begins and what has ended; then its bytes go out."""
        touched, asks, replies = self.touched, self.asks, self.replies
        if not touched:
            return
        self.touched, self.asks, self.replies = [], [], []
        parts: list[Part] = []
        for stencil in touched:
            part, ended = stencil.take()
            parts.append(part)
            if ended:
                self.ended.append((stencil, ended))
        try:
            self.spool.write(frame_batch(parts), len(replies))
        except SpoolFull:
            asks = self._without_room(asks, touched, parts)
        for upstream, message in asks:
            wire = upstream.wire
            if wire is not None:
                try:
                    wire.write(message)
                except (RuntimeError, OSError):
                    continue  # it is closing; that it is gone will be told, and the request then tries another
        if replies:
            now = self.now()
            for client, reply in replies:
                client.answered_fast(reply, now)
            self._answers += len(replies)
            if self._answers >= MOST_ENDED:
                self._count_ended()

    def _without_room(
        self, asks: list[tuple[Upstream, bytes]], touched: list[Stencil], parts: list[Part]
    ) -> list[tuple[Upstream, bytes]]:
        """The disk did not take them together. What has ended waits for room; of what has come, nothing is sent without a record."""
        for stencil, (_, _, some) in zip(touched, parts, strict=True):
            for ended in some:
                self.spool.settle_record(frame(SETTLED, ended_event(stencil.common, records.Ended(*ended))))
        for upstream, _ in asks:
            exchange = cast("FastExchange | None", upstream.fast)  # its answer cannot have begun
            if exchange is not None:
                exchange.not_recorded()
        return []

    def work(self) -> None:
        """Everything is counted where it belongs."""
        self.till.close()
        self._count_ended()

    def _count_ended(self) -> None:
        """Counts and logs what has ended since the last time."""
        ended, self.ended, self._answers = self.ended, [], 0
        if not ended:
            return
        gateway = self._gateway
        by_stencil: dict[Stencil, list[Ended]] = {}
        for stencil, some in ended:
            known = by_stencil.get(stencil)
            if known is None:
                by_stencil[stencil] = some
            else:
                known += some
        at = b"%.3f" % self.wall()
        for stencil, some in by_stencil.items():
            sums = gateway.raw_telemetry.ended_well(stencil.deployment_id, stencil.endpoint, some)
            gateway.raw_loads.ended_well(stencil.deployment_id, sums)
            if gateway.config.log_requests:
                gateway.log.add_lines(stencil.lines(at, some), len(some))


def _at_once(what: Callable[[], None]) -> None:
    what()
