"""What one request has of a replica, and the room in which requests for one deployment wait."""

from __future__ import annotations

from typing import Protocol

from berth_gateway import affinity
from berth_gateway.account import Facts
from berth_gateway.contract import Replica
from berth_gateway.fairness import FairQueue
from berth_gateway.limits import Permit
from berth_gateway.route import Address


class Seeker(Protocol):
    """Who looks for a replica. One of the two is called for each `seek`, at once or later, unless it leaves first."""

    facts: Facts
    permit: Permit

    def placed(self, replica: Replica) -> None:
        """It may use this replica until it leaves."""

    def turned_away(self, code: str, sentence: str, retry_after: int | None) -> None:
        """There is none, or none became free in time."""


class Place:
    """What one request has of a replica: nothing yet, a position in the queue, or a place among those in flight."""

    __slots__ = (
        "_lead",
        "cost",
        "facts",
        "gone",
        "key_id",
        "org_id",
        "seeker",
        "sent_at",
        "since",
        "tried",
        "waiting",
        "weight",
        "where",
    )

    def __init__(self, seeker: Seeker, now: float) -> None:
        self.seeker: Seeker | None = seeker
        self.facts = facts = seeker.facts
        self.org_id, self.key_id = facts.caller.org.org_id, facts.caller.key.key_id
        self.weight = facts.caller.org.weight
        self.cost = seeker.permit.demand.tokens
        self.gone = self.waiting = False
        self.since = now
        self.sent_at: float | None = None  # when it last went to a replica
        self.where: Address | None = None
        self.tried: set[Address] = set()
        self._lead: bytes | None = None

    def lead(self, epoch: str) -> bytes:
        if self._lead is None:
            self._lead = affinity.key_of(epoch, self.org_id, self.facts.prepared.body)
        return self._lead


class Room:
    """Requests that wait for one deployment."""

    def __init__(self) -> None:
        self.queue: FairQueue[Place] = FairQueue()
        self.places: dict[Place, None] = {}
        self.serving_since: float | None = None  # when a replica became ready, if they waited for that
