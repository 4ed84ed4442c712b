"""What the usual requests of one gateway process share: whether they may take the short way, and the work that is done for many at once.

Between two waits of the event loop several requests come and several answers end. Their spool records are written in one go, and
only then their bytes go out: the requests to engines, the answers to clients. What is counted and logged about them is worked off
later still, together (docs/gateway.md, "The usual request").
"""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom
from typing import TYPE_CHECKING

from berth_gateway import grant
from berth_gateway.admit import Caller
from berth_gateway.endpoint import Endpoint
from berth_gateway.grant import Grant
from berth_gateway.spool import SpoolFull
from berth_gateway.stencil import Ended

if TYPE_CHECKING:
    from berth_gateway.client import Client
    from berth_gateway.fast import FastExchange
    from berth_gateway.gateway import Gateway
    from berth_gateway.upstream import Upstream

MOST_GRANTS = 4000  # of about 5 KB
IDS = 256
randbytes = SystemRandom().randbytes
_WIDTH = 23
_RANDOM = (*range(2, 5), *range(7, 10), *range(11, 23))  # columns of random digits
MOST_ENDED = 128  # answers whose counting waits


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
        self.due = False
        self.records: list[bytes] = []
        self.asks: list[tuple[Upstream, bytes]] = []
        self.replies: list[tuple[Client, bytes, bytes]] = []  # client, answer, SETTLED record
        self.ended: list[Ended] = []
        self.spool = gateway.spool
        self.open_records = gateway.spool.open_records
        self.ids: list[bytes] = []  # what follows the moment in event ids that nobody has yet
        self._ms, self._moment = 0, b""
        self.now, self.wall = gateway.now, gateway.wall
        self._grants: dict[tuple[bytes, str], dict[str, Grant]] = {}
        self._count = 0

    # Who may come this way

    def forget(self) -> None:
        """Keys, routes, limits, prices or the link to Valkey may have changed."""
        self.generation += 1
        self._grants = {}
        self._count = 0
        self.look()

    def look(self) -> None:
        """Whether requests may come this way now; looked at several times a second and whenever something of it changes."""
        gateway = self._gateway
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

    # Event ids are UUIDs of version 7: milliseconds since 1970, then 72 random bits

    def moment(self, ms: int) -> bytes:
        """What the event ids of this millisecond begin with."""
        if ms != self._ms:
            self._ms = ms
            self._moment = b"%08x-%04x" % (ms >> 16, ms & 0xFFFF)
        return self._moment

    def make_ids(self) -> None:
        """Many at once: a column of their digits is one stroke."""
        row = bytearray(b"-7...-9...-............") * IDS
        digits, width = randbytes(IDS * 9).hex().encode(), len(_RANDOM)
        for at, column in enumerate(_RANDOM):
            row[column::_WIDTH] = digits[at::width]
        self.ids.extend(bytes(row[at : at + _WIDTH]) for at in range(0, len(row), _WIDTH))

    # What is done for many at once

    def later(self) -> None:
        """`flush` is due before the event loop waits again."""
        if not self.due:
            self.due = True
            self.soon(self.flush)

    def flush(self) -> None:
        """Puts on record what has come and what has ended; then sends it on."""
        self.due = False
        records, asks, replies = self.records, self.asks, self.replies
        if not records:
            return
        self.records, self.asks, self.replies = [], [], []
        try:
            self.spool.write(b"".join(records), len(replies))
        except SpoolFull:
            asks = self._without_room(asks, replies)
        for upstream, message in asks:
            wire = upstream.wire
            if wire is not None:
                try:
                    wire.write(message)
                except (RuntimeError, OSError):
                    continue  # it is closing; that it is gone will be told, and the request then tries another
        if replies:
            now = self.now()
            for client, reply, _ in replies:
                client.answered_fast(reply, now)
            if len(self.ended) >= MOST_ENDED:
                self.work()

    def _without_room(
        self, asks: list[tuple[Upstream, bytes]], replies: list[tuple[Client, bytes, bytes]]
    ) -> list[tuple[Upstream, bytes]]:
        """The disk did not take them together. What has ended waits for room; of what has come, nothing is sent without a record."""
        for _, _, record in replies:
            self.spool.settle_record(record)
        for upstream, _ in asks:
            exchange: FastExchange | None = upstream.fast
            if exchange is not None:
                exchange.not_recorded()
        return []

    def work(self) -> None:
        """Counts and logs what has ended since the last time."""
        ended, self.ended = self.ended, []
        if not ended:
            return
        gateway = self._gateway
        by_grant: dict[Grant, list[Ended]] = {}
        for each in ended:
            some = by_grant.get(each[0])
            if some is None:
                some = by_grant[each[0]] = []
            some.append(each)
        at = b"%.3f" % self.wall()
        for found, some in by_grant.items():
            sums = gateway.raw_telemetry.ended_well(found.deployment_id, found.endpoint.name, some)
            gateway.raw_loads.ended_well(found.deployment_id, sums)
            if gateway.config.log_requests:
                gateway.log.add_lines([each[1].line(at, each) for each in some])


def _at_once(what: Callable[[], None]) -> None:
    what()
