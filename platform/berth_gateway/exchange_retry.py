"""Whether a request is tried once more, and where.

It is safe as long as its client has had nothing of an answer: the whole body is kept, an answer changes nothing on a replica, and what
the first one may have made is on no bill.
"""

from __future__ import annotations

from berth_gateway.exchange_state import ExchangeState
from berth_gateway.relays import relay_for
from berth_gateway.route import Address


class Retrying(ExchangeState):
    """A request that may begin anew."""

    def _may_retry(self) -> bool:
        """Only while nothing of an answer has been sent: one that is put together here may begin anew until it is whole."""
        reader = self._relay.reader
        unsent = not reader.pieces or not (self.facts.prepared.stream or self._committed)
        return unsent and not self._settled and not reader.complete

    def _retry_elsewhere(self, where: Address | None, reason: str) -> bool:
        """Once, if a replica had it; as often as there are replicas, if it could not be sent."""
        place, sent = self._place, self._sent_to == where
        if where is None or place is None or (sent and self._retried):
            return False
        self._retried = self._retried or sent
        place.tried.add(where)
        place.since = self._gateway.now()  # however long it was there: it may wait for the next as anybody else
        if not self._gateway.router.others(self.facts.route, place.tried):
            return False
        self._gateway.telemetry.retries.add(reason)
        self._again(fresh=True)  # a second kept connection could be stale, too
        return True

    def _again(self, *, fresh: bool = False) -> None:
        if self._place is not None:
            self._relay, self._fresh, self._express = relay_for(self.facts), fresh, None
            self._held.clear()
            self._status, self._error = 0, b""
            self._first_token, self._progress_at = None, 0
            self._gateway.places.seek(self._place)
