"""A worker's share of a rate limit or of a concurrency limit. Pure; the caller brings the clock (seconds, monotonic).

Valkey sets units aside for a worker ahead of their use, so that whatever all workers together use and hold never exceeds the
limit. A pool answers from what it holds; when that is too little and it knows that nothing is left, it refuses at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from berth_gateway.window import SLOT_SECONDS, Window, slot_of

if TYPE_CHECKING:
    from berth_gateway.till import Till

KNOWN_SECONDS = 0.25  # how long "nothing is left" is believed before it is asked again
TELL_SECONDS = 0.25  # how long uses and what is given back may wait to be told
IDLE_SECONDS = 0.5  # after so long without demand, what is held is given back
RENEW_SECONDS = 2.0  # seats are renewed so often; Valkey forgets a silent worker's after ten seconds
MINUTE_SECONDS = 60.0
STUMBLE_SECONDS = 5.0  # contact that is lost for less changes nobody's part of a limit


class Kind(Enum):
    """What a pool counts, as clients are told."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    SEATS = "seats"  # requests running at one moment


class Answer(Enum):
    YES = auto()
    NO = auto()
    ASK = auto()  # Valkey may have more


class PoolAsk(NamedTuple):
    """What is sent. `uses` are pairs of (slot of Valkey's clock, units)."""

    keep: int
    need: int
    want: int
    uses: tuple[tuple[int, int], ...]


class PoolReply(NamedTuple):
    """What comes back: units set aside, units left for others, milliseconds until what was missing comes back, workers at it,
    and Valkey's clock (Unix milliseconds)."""

    granted: int
    free: int
    back_ms: int
    active: int
    now_ms: int


class Pool:
    """One limit of one subject in one worker.

    Within a tenth of a second the fast path (`fast`) counts here in plain numbers, between two calls of anything else: `turn` is that
    slot (-1: nothing is counted so), `most` what may be taken in it, `taken` and `back` what was, `own_left` and `held_left` what
    was left at its beginning; `till` counts for it meanwhile. Every other use folds these in first.
    """

    def __init__(self, subject: str, kind: Kind, limit: int) -> None:
        self.subject = subject  # "key:<id>", "member:<id>", "org:<id>", "deployment:<id>"
        self.kind = kind
        self.limit = limit
        self.name = f"{kind.value}:{subject}"
        self.held = 0  # set aside for this worker; of seats, those in use included
        self.in_use = 0  # seats that running requests sit on
        self.own = Window()
        self.free = limit  # what Valkey had left when it was last heard
        self.heard_at = float("-inf")
        self.back_at = 0.0  # when what was missing comes back
        self.active = 1  # workers that used this limit lately
        self._due = (
            0  # this worker's part of the limit when Valkey was last heard: used, held, and its share of what was free
        )
        self._uses: dict[int, int] = {}  # by slot, not told yet
        self._untold_since = float("inf")
        self._demand = 0  # units since the last tick
        self._pace = 0  # units in a tick, lately
        self._demanded_at = float("-inf")
        self._sent: dict[int, int] = {}
        self.turn = -1
        self.most = self.taken = self.back = self.own_left = self.held_left = 0
        self._turned_at = 0.0
        self.till: Till | None = None

    # The fast path

    def turn_to(self, slot: int, now: float, *, connected: bool, workers: int) -> None:
        """From here until the slot is over, or something else is asked, `taken` and `back` count (of seats `in_use`, too)."""
        self.fold()
        self.turn, self._turned_at = slot, now
        if self.kind is Kind.SEATS:
            self.most = self.held if connected else max(self._allowed(1, now, workers), self.held)
            return
        self.own_left = self.limit - self.own.expire(slot)
        if connected:
            self.most = self.held
            self.held_left = self.free + self.held if self.heard_at > float("-inf") else self.own_left
        else:
            self.most = max(self._allowed(1, now, workers) - self.limit + self.own_left, self.held)
            self.held_left = 1 << 62

    def fold(self) -> None:
        """Ends the turn: what was counted in it becomes part of the window."""
        if self.till is not None:
            self.till.close()
        slot, taken, back = self.turn, self.taken, self.back
        if slot < 0:
            return
        self.turn, self.taken, self.back = -1, 0, 0
        if taken:
            self._demand += taken
            self._demanded_at = self._turned_at
        if self.kind is Kind.SEATS:
            self.held = max(self.held, self.in_use)
        elif taken or back:
            self.held = max(0, self.held - taken)
            self._note(slot, taken - back, self._turned_at)

    # What requests ask

    @property
    def spare(self) -> int:
        self.fold()
        return self.held - self.in_use

    def check(self, units: int, now: float, *, connected: bool, workers: int) -> Answer:
        """Whether `units` may be used now. Nothing is changed."""
        self.fold()
        if not connected:
            return self._check_alone(units, now, workers)
        if self.spare >= units:
            return Answer.YES
        recent = now - self.heard_at < KNOWN_SECONDS
        if recent and self.free + self.spare < units and now < self.back_at:
            return Answer.NO
        return Answer.ASK

    def _check_alone(self, units: int, now: float, workers: int) -> Answer:
        """Valkey is away: each worker goes on with what it had, which within a minute becomes its fair share."""
        used = self.in_use if self.kind is Kind.SEATS else self.own.expire(slot_of(now))
        fits = used + units <= self._allowed(units, now, workers) or units <= self.spare
        return Answer.YES if fits else Answer.NO

    def _allowed(self, units: int, now: float, workers: int) -> int:
        """What this worker may use within a minute while Valkey is away. At each moment the parts of all workers sum up to the limit,
        also where one of them has just used most of it: others then have no more than what nobody had when Valkey was last heard."""
        heard = self.heard_at > float("-inf")
        others = max(self.active if heard else workers, 1)
        share = max(self.limit // others, min(units, self.limit))
        age = now - self.heard_at
        if age >= MINUTE_SECONDS:
            return share
        part = max(0.0, age - STUMBLE_SECONDS) / (MINUTE_SECONDS - STUMBLE_SECONDS)
        return self._due + int((share - self._due) * part)

    def take(self, units: int, now: float) -> int:
        """Uses `units`; returns the slot, which `give_back` asks for."""
        self.fold()
        slot = slot_of(now)
        self._demand += units
        self._demanded_at = now
        if self.kind is Kind.SEATS:
            self.in_use += units
            self.held = max(self.held, self.in_use)
            return slot
        self.held = max(0, self.held - units)
        self._note(slot, units, now)
        return slot

    def give_back(self, slot: int, units: int, now: float) -> None:
        """Corrects what was taken in `slot`: `units` were not used after all; below 0: more were."""
        self.fold()
        if self.kind is Kind.SEATS:
            self.in_use -= units
        elif units:
            self._note(slot, -units, now)

    def _note(self, slot: int, units: int, now: float) -> None:
        self.own.add(slot, units)
        self._uses[slot] = self._uses.get(slot, 0) + units
        self._untold_since = min(self._untold_since, now)

    def remaining(self, now: float, *, connected: bool) -> int:
        """What is left of the limit, as well as this worker knows."""
        self.fold()
        if self.kind is Kind.SEATS:
            return max(0, self.limit - self.in_use)
        own = self.limit - self.own.expire(slot_of(now))
        return max(0, min(own, self.free + self.held) if connected and self.heard_at > float("-inf") else own)

    def wait_seconds(self, units: int, now: float) -> float:
        """How long until `units` may fit."""
        self.fold()
        if self.kind is Kind.SEATS:
            return 1.0
        if self.back_at > now:
            return self.back_at - now
        return max(self.own.until_free(slot_of(now), units, self.limit), 0.1)

    # What goes to Valkey and comes back

    def tick(self, now: float) -> bool:
        """Every tenth of a second. Whether there is something to tell, to give back or to fetch ahead."""
        self.fold()
        self._pace = max(self._demand, (self._pace * 7) // 8)
        self._demand = 0
        self.own.expire(slot_of(now))
        if now - self._untold_since > TELL_SECONDS:
            return True
        if self.kind is Kind.SEATS and self.held and now - self.heard_at > RENEW_SECONDS:
            return True
        if self.spare > self._ahead(now):
            return now - self._demanded_at > IDLE_SECONDS
        roomy = self.free > 4 * self.active * max(self._pace, 1)
        return roomy and self._pace > 0 and self.spare < self._ahead(now) // 2

    def retire(self) -> None:
        """Wants nothing ahead any more."""
        self._demand = self._pace = 0

    @property
    def idle(self) -> bool:
        """Nothing is held, used or to be told: the pool may be forgotten."""
        self.fold()
        return not (self.held or self.in_use or self._uses or self._sent or self.own.used)

    def _ahead(self, now: float) -> int:
        """Units to hold ahead of their use: what the next quarter of a second will probably ask for."""
        return 0 if now - self._demanded_at > IDLE_SECONDS else (self._pace * 5) // 2

    def ask(self, waiting: Sequence[int], now: float, clock: float | None) -> PoolAsk:
        """What to send for requests that wait for these units. From here on only what is kept may be used.

        `clock`: seconds by which Valkey's clock is ahead of `now`'s; None: not known yet, so that uses are told the next time. They
        are told by its slots, and always by the same: what is given back has to leave the minute together with what was taken."""
        self.fold()
        ahead = self._ahead(now)
        need = max(0, sum(waiting) - self.spare)
        kept = self.spare if waiting else min(self.spare, ahead)
        self.held = self.in_use + kept
        uses: list[tuple[int, int]] = []
        if clock is not None:
            self._sent, self._uses = self._uses, {}
            self._untold_since = float("inf")
            # By a slot's end: later than it was, never sooner.
            uses = [(slot_of((slot + 1) * SLOT_SECONDS + clock), units) for slot, units in self._sent.items() if units]
        return PoolAsk(self.held, need, need + max(0, ahead - kept), tuple(uses))

    def answered(self, reply: PoolReply, now: float) -> None:
        self.fold()
        self._sent = {}
        self.held += reply.granted
        self.free = max(0, reply.free)
        self.active = max(1, reply.active)
        self.heard_at = now
        self.back_at = now + reply.back_ms / 1000 if reply.back_ms else 0.0
        used = 0 if self.kind is Kind.SEATS else self.own.expire(slot_of(now))
        # Others go on asking: by the time that contact is found to be lost, a quarter of the limit may have become theirs.
        self._due = used + self.held + max(0, self.free - self.limit // 4) // self.active

    def unanswered(self, now: float) -> None:
        """Nobody knows whether it arrived: it is told again, at worst counted twice."""
        for slot, units in self._sent.items():
            self._uses[slot] = self._uses.get(slot, 0) + units
        if self._sent:
            self._untold_since = now
        self._sent = {}
