"""What the autoscaler remembers between two calls. It can be packed (msgspec) and handed on to another leader."""

from __future__ import annotations

import msgspec

from berth.deployments.scaling.bursts import Bursts
from berth.deployments.scaling.calendar import Pattern
from berth.deployments.scaling.headroom import Surprises
from berth.deployments.scaling.history import History
from berth.deployments.scaling.measured import Corrected


class Counters(msgspec.Struct, frozen=True):
    """As they were told last; None: not known."""

    arrivals: float = 0.0
    answers: float | None = None
    first_token_seconds: float | None = None
    late: float | None = None
    queue_seconds: float | None = None
    ended: float | None = None
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    decode_seconds: float | None = None
    decode_tokens: float | None = None


class Sums(msgspec.Struct, frozen=True):
    """Of the stretch that is being assessed: since when, with how many replicas, and what came in it."""

    since: float
    ready: int
    work: float = 0.0
    counts: Counters = Counters()
    peak: float = 0.0  # work a second of one replica in the busiest ten seconds
    busy: float = 0.0  # requests in flight or waiting when it began


class Mix(msgspec.Struct, frozen=True):
    """Recent requests: sums that forget."""

    ended: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    in_flight: float = 0.0  # mean over the last minute or so


class Hold(msgspec.Struct, frozen=True):
    """Prepared for no less than `rate` work a second until then."""

    until: float
    rate: float


class Awaited(msgspec.Struct, frozen=True):
    """A forecast that is compared with what came when its time is up."""

    due: float
    rate: float
    # Work a second that so many do as that forecast takes: with what is kept after peaks, and without. Bursts left out of both.
    able: float = 0.0
    barely: float = 0.0


class Coming(msgspec.Struct, frozen=True):
    """Replicas that were asked for and should be ready then."""

    at: float
    count: int


class State(msgspec.Struct, frozen=True):
    """`State()` is the beginning."""

    now: float | None = None  # of the last call
    begun: float | None = None  # of the first call
    initial: int = 0  # replicas at the first call
    desired: int = 0
    counters: Counters = Counters()
    busy: float = 0.0  # requests that were in flight or waited, as told or worked out
    done: float | None = None  # requests a second that were finished, lately
    flooded: int | None = None  # replicas that were ready when requests began to wait within engines
    full_since: float | None = None  # since when so many replicas as now have had requests waiting
    stay: float | None = None  # seconds that a request spends in a replica that is not crowded
    stuck_since: float | None = (
        None  # since when less has been finished than could be, though requests wait within engines
    )
    owed: float = 0.0  # arrivals that were taken for too many, below 0
    history: History = History()
    mix: Mix = Mix()
    dispersion: float = 1.5  # variance over mean of what comes in ten seconds: 1 if requests knew nothing of each other
    last_rate: float | None = None  # work a second in the ten seconds before the last comparison
    surprises: Surprises = Surprises()
    awaited: tuple[Awaited, ...] = ()
    compared_at: float = 0.0
    corrected: Corrected = Corrected()
    sums: Sums | None = None
    unloaded: float | None = None  # seconds to the first token of a request alone, as learned
    holds: tuple[Hold, ...] = ()  # the later, the fewer
    jump: Hold | None = None  # what came suddenly, until it shows in the forecast
    coming: tuple[Coming, ...] = ()
    pattern: Pattern = Pattern()
    bursts: Bursts = Bursts()
    held_ready: float = 0.0  # work a second, for the next burst
    foreseen: float = 0.0  # work a second when a replica that is asked for now is ready, as of the last call
    ready_since: float | None = None
    active_at: float | None = None  # when a request last came, waited or ran
    went_down_at: float | None = None
    had: int = 0  # replicas before the last steps down
    patience: float = 1.0  # factor on the stabilisation: a step down that was regretted doubles it
    regretted_at: float = 0.0
