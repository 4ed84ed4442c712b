"""What happens next to a deployment, and how long each phase of a start usually takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final

import msgspec
from django.db.models import QuerySet

from berth.deployments.models import Deployment, Replica, Revision, State

PHASES: Final = ("fetching", "verifying", "loading", "warming")
_HISTORY: Final = 20  # latest starts of the same artefact on the same tier
_READ: Final = 0.5e9  # bytes per second: a first guess for reading and checking a file
_LEAST: Final = {"fetching": 0.1, "verifying": 0.1, "loading": 1.0, "warming": 0.5}

_DOES: Final = {
    "fetching": "The files are brought to the machine.",
    "verifying": "The files are checked against their digests.",
    "loading": "The engine reads the weights into memory.",
    "warming": "The first real token is generated.",
    "ready": "It answers requests.",
}

# Both revisions stay side by side: what ends that is told, for the one from before does not end as soon as the new one answers.
_COMPARES: Final = {
    "canary": "Its share grows step by step as requests are compared, or when somebody promotes it.",
    "shadow": "It gets copies of requests until somebody promotes it or goes back.",
    "rollout_paused": "Nothing by itself: resume the rollout, promote it or go back.",
}


class Usual(msgspec.Struct, frozen=True):
    """Seconds of each phase: measured for these files on this tier, or estimated from their size when it is the first time."""

    seconds: dict[str, float]
    basis: str  # "measured", "estimated"


class Next(msgspec.Struct, frozen=True):
    code: str
    message: str
    usual_seconds: float | None


def usual(revision: Revision) -> Usual:
    measured = durations(_starts(revision).values_list("phases", flat=True))
    guess = {phase: round(_LEAST[phase] + _bytes_in(phase, revision.artefact.size) / _READ, 1) for phase in PHASES}
    if not measured:
        return Usual(guess, "estimated")
    return Usual({phase: measured.get(phase, 0.0) for phase in PHASES}, "measured")


def cold_start(revision: Revision) -> float:
    """Seconds from asking for a replica until it answers, in the median of the latest starts of these files on this tier: its phases, and
    what it waited for before and between them, such as a node. Estimated by phases when it is the first time."""
    rows = _starts(revision).values_list("started_at", "ready_at")
    took = [max(0.0, (ready - started).total_seconds()) for started, ready in rows if ready is not None]
    return median(took) if took else sum(usual(revision).seconds.values())


def _starts(revision: Revision) -> QuerySet[Replica]:
    rows = Replica.objects.for_org(revision.org_id)
    same = rows.filter(revision__artefact=revision.artefact_id, revision__tier=revision.tier)
    return same.exclude(ready_at=None).order_by("-id")[:_HISTORY]


def durations(starts: Iterable[Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """Median seconds of each phase over finished starts."""
    found: dict[str, list[float]] = defaultdict(list)
    for phases in starts:
        for timing in phases:
            if timing["phase"] in PHASES and timing.get("ended_at") is not None:
                found[timing["phase"]].append(max(0.0, timing["ended_at"] - timing["started_at"]))
    return {phase: round(median(values), 2) for phase, values in found.items()}


def upcoming(deployment: Deployment, replicas: Sequence[Replica], times: Usual) -> Next | None:
    """The next thing that happens by itself. None: nothing does."""
    starting = [replica for replica in replicas if replica.ended_at is None and replica.phase in PHASES]
    match deployment.state:
        case State.QUEUED if deployment.reason == "no_capacity":
            return Next("waiting_for_room", "It starts by itself when there is room for it.", None)
        case State.QUEUED if deployment.reason == "preparing":
            return Next("prepared", "It starts by itself when its files are made and measured.", None)
        case State.QUEUED:
            return Next("placing", "A place for it is looked for.", 1.0)
        case State.STOPPING:
            return Next("stopped", "It ends when the requests that run have been answered.", None)
        case State.FAILED:
            return Next(
                "retry", "It is tried again in some minutes. Resume tries at once; a new revision helps more.", 600.0
            )
        case State.ASLEEP:
            return Next("wake", "The next request wakes it and waits until it answers.", sum(times.seconds.values()))
        case State.PAUSED | State.DELETED | State.READY:
            return None
    if deployment.reason == "backing_off":
        return Next("retry", "It is tried again shortly.", None)
    if starting:
        return _after(max(starting, key=lambda replica: PHASES.index(replica.phase)).phase, times)
    if deployment.state == State.UPDATING and deployment.reason in _COMPARES:
        return Next(deployment.reason, _COMPARES[deployment.reason], None)
    if deployment.state == State.UPDATING:
        return Next("switch", "The revision before it ends as soon as the new one answers.", None)
    return Next("placing", "A place for it is looked for.", 1.0)


def _after(phase: str, times: Usual) -> Next:
    following = (*PHASES, "ready")[PHASES.index(phase) + 1]
    return Next(following, _DOES[following], times.seconds.get(following))


def _bytes_in(phase: str, size: int) -> int:
    return size if phase in ("verifying", "loading") else 0
