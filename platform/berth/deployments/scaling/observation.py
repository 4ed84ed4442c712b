"""What the autoscaler is told at each call. Seconds, requests, tokens; every field but a few has a meaning for "not known"."""

from __future__ import annotations

import msgspec

DAY: float = 86_400.0
STABILISATION: float = 400.0


class Capacity(msgspec.Struct, frozen=True):
    """What one replica can do within the deployment's goals, as planned. It is corrected by what is measured, so a rough number
    will do; without any, only measurement decides. Give whichever is known."""

    requests_per_second: float | None = None  # of random (Poisson) arrivals, answered within the goals
    concurrency: float | None = None  # requests in flight, at most, within the goals
    # Of many replicas behind one router, each carries more than one alone, since a burst finds an idle one: requests a second
    # of each replica in a large fleet. None: a tenth more than `requests_per_second`.
    pooled_requests_per_second: float | None = None
    # The mix of requests that these numbers are meant for; with them, longer or shorter requests count accordingly.
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_share: float = 0.5  # of a replica's time that such a request's prompt takes


class Goals(msgspec.Struct, frozen=True):
    first_token_seconds: float | None = 1.0
    token_seconds: float | None = None  # between tokens
    share: float = 0.995  # of the requests that shall be within the goals
    most_wait_seconds: float = 75.0  # no request shall wait longer for its first token


class Peak(msgspec.Struct, frozen=True):
    """A declared peak, once or every day or week: a floor that is up before `start`, earlier by the time a replica takes to start.
    Give `replicas`, or `requests_per_second` and it is computed."""

    start: float  # Unix seconds, of the first time
    end: float
    every: float | None = None  # seconds: DAY, 7 * DAY; None: once
    replicas: int | None = None
    requests_per_second: float | None = None


class Policy(msgspec.Struct, frozen=True):
    """What a deployment's owner decides. The defaults are good."""

    least: int = 1  # replicas; 0: it may sleep
    most: int = 16
    sleep_after: float | None = None  # seconds without a request, counted from when a replica is ready; needs least = 0
    peaks: tuple[Peak, ...] = ()
    goals: Goals = Goals()
    head_room: float | None = None  # factor on the forecast; None: learned from how bursty the traffic is
    most_head_room: float = 2.0  # what is learned buys no more than this
    # Seconds for which a lower need must have held before a replica goes. What is kept for bursts is kept in proportion to it.
    stabilisation: float = STABILISATION
    daily: bool = True  # learn the daily pattern


class Observation(msgspec.Struct, frozen=True):
    """Counters rise from call to call (`window` None), or cover the last `window` seconds only. A counter that is lower than at the
    last call has begun anew. `now` is seconds of any steady clock; for daily patterns and peaks, Unix time."""

    now: float
    arrivals: float | None  # counter: requests that came, whatever became of them. None: see `arrival_rate`
    ready: int  # replicas that may get requests
    starting: int = 0  # asked for, not ready yet
    in_flight: float | None = None  # requests that are with replicas, now, those that wait within engines included
    queued: float | None = None  # requests that wait outside replicas, now
    policy: Policy = Policy()
    capacity: Capacity = Capacity()
    cold_start: float = 60.0  # seconds from asking for a replica until it is ready, as measured lately
    window: float | None = None
    # Optional measurements. Counters again; None: not known.
    answers: float | None = None  # first tokens that came
    first_token_seconds: float | None = None  # sum over `answers`, from arrival, waiting included
    late: float | None = None  # of `answers`, those later than `Goals.first_token_seconds`, however slow tokens were
    queue_seconds: float | None = None  # sum of the waiting outside replicas, over requests that were sent to one
    ended: float | None = None  # requests that were answered whole
    prompt_tokens: float | None = None  # sum over `ended`
    completion_tokens: float | None = None  # sum over `ended`
    decode_seconds: float | None = None  # sum of the time from first to last token
    decode_tokens: float | None = None  # tokens behind the first in that time
    # Requests a second since the last call, where nobody counts arrivals. Without either, arrivals are worked out from `in_flight` and
    # `queued`, for which `capacity` has to tell the concurrency.
    arrival_rate: float | None = None
    # Optional gauges.
    engine_queue: float | None = None  # requests that wait within engines, now
    cache_use: float | None = None  # of the engines' key-value caches, mean, 0 to 1
    unloaded_first_token: float | None = None  # seconds to the first token of a request alone; None: learned

    @property
    def flying(self) -> float:
        return self.in_flight or 0.0

    @property
    def held(self) -> float:
        return self.queued or 0.0
