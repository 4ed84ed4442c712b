"""What is known of an exchange while it runs, and what it comes to: its usage event."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from berth_gateway import meter
from berth_gateway.account import Facts, bill_of, event_of
from berth_gateway.contract import Outcome, Replica, UsageEvent
from berth_gateway.errors import Refusal
from berth_gateway.express import Express
from berth_gateway.limits import Permit
from berth_gateway.place import Place
from berth_gateway.relays import relay_for
from berth_gateway.route import Address
from berth_gateway.upstream import Upstream

if TYPE_CHECKING:
    from berth_gateway.gateway import Gateway


class Answering(Protocol):
    """The client's side, as an exchange uses it."""

    def refuse(self, refusal: Refusal) -> None:
        """An error answer, complete."""

    def answer(self, body: bytes) -> None:
        """A JSON answer, complete."""

    def stream(self, data: bytes, *, last: bool) -> None:
        """A piece of an event stream; the first brings the head with it, the last ends the answer."""

    def chunk_writer(self) -> Callable[[bytes], None] | None:
        """Sends bytes as they are, HTTP chunks around them, within an event stream that has begun; None if it has none."""


class ExchangeState:
    """A request's way through the gateway, as far as it has got."""

    def __init__(self, gateway: Gateway, client: Answering, facts: Facts, permit: Permit) -> None:
        self._gateway = gateway
        self._client = client
        self.facts = facts
        self.permit = permit
        self._upstream: Upstream | None = None
        self._place: Place | None = None  # where it is with a replica, or waits for one
        self._replica: Replica | None = None  # the last it was sent to
        self._sent_to: Address | None = None  # the last that has got it
        self._fresh = False  # the next try needs a connection of its own
        self._retried_stale = self._retried = False  # on a fresh connection; elsewhere, after a replica had it
        self._status = 0
        self._error = b""
        self._relay = relay_for(facts)
        self._express: Express | None = None
        self._held: list[bytes] = []  # events before the first content: they wait with the head
        self._committed = False
        self._accepted = False  # on record: an engine gets it, or has got it
        self._settled = False
        self._first_token: float | None = None  # seconds after the start
        self._last_write = facts.started
        self._progress_at = self._moved_at = 0  # pieces at the last look

    @property
    def waited(self) -> tuple[float | None, float | None]:
        """When it asked for a replica, and when it last went to one, on the loop's clock."""
        return (None, None) if self._place is None else (self._place.since, self._place.sent_at)

    @property
    def _where(self) -> Address | None:
        return None if self._place is None else self._place.where

    def _leave_upstream(self, *, abort: bool) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            if abort:
                upstream.abort()
            else:
                upstream.release()
        if self._place is not None:
            self._gateway.places.leave(self._place)

    def _replica_failed(self, where: Address | None) -> None:
        """Told before the place is given up, so that who waits for it does not go the same way."""
        if where is not None:
            self._gateway.router.failed(where, self._gateway.now())

    # Accounts

    def progress(self) -> UsageEvent | None:
        """The event as it would be if the gateway died now; None when nothing has changed since the last."""
        if self._settled or not self._accepted or self._relay.reader.pieces == self._progress_at:
            return None
        self._progress_at = self._relay.reader.pieces
        return self._account(Outcome.INTERRUPTED, 200 if self._committed else 503, self._bill())

    def _settle(self, outcome: Outcome, status: int) -> meter.Bill:
        bill = self._bill()
        self._settled = True
        if not self._accepted:  # no engine has seen it: there is nothing to account for
            self._gateway.dropped(self)
            return bill
        self._gateway.settled(self, self._account(outcome, status, bill), breach=bill.breach)
        return bill

    def _bill(self) -> meter.Bill:
        if self._status not in (0, 200):
            return meter.NOTHING  # error text is never billed
        return bill_of(self.facts, self._relay.reader)

    def _account(self, outcome: Outcome, status: int, bill: meter.Bill) -> UsageEvent:
        seconds = self._gateway.now() - self.facts.started
        event = event_of(
            self.facts, self._gateway.config.name, outcome, status, bill, seconds=seconds, first_token=self._first_token
        )
        revision = self._replica.revision if self._replica is not None else None
        return event if revision in (None, event.revision) else msgspec.structs.replace(event, revision=revision)
