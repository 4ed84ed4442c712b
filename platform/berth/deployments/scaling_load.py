"""What gateways see of the deployments, summed up over gateways that come, go and begin anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from berth.outbox.valkey import client
from berth_gateway.contract import GATEWAYS_KEY, LOAD_PREFIX, DeploymentLoad

_load = msgspec.msgpack.Decoder(DeploymentLoad)
_COUNTED: Final = (
    "arrivals", "answers", "first_token_seconds", "queue_seconds", "decode_seconds", "decode_tokens", "prompt_tokens",
    "completion_tokens",
)  # fmt: skip


class Counts(msgspec.Struct, frozen=True):
    """Counters: of one gateway since it started, or of all since they are being summed."""

    arrivals: float = 0.0
    answers: float = 0.0
    first_token_seconds: float = 0.0
    queue_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_tokens: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0


class Tally(msgspec.Struct, frozen=True):
    """`seen`: by gateway, when it started and what it counted."""

    at: float = 0.0  # Unix seconds of the last sum; 0: none yet
    total: Counts = Counts()
    seen: dict[str, tuple[float, Counts]] = {}
    in_flight: int = 0
    queued: int = 0


def summed(before: Tally, loads: Mapping[str, DeploymentLoad], now: float) -> Tally:
    """With what each gateway counted since the last time. One that is new counts from its start if that was since then; else from now
    on, so that nothing that is long past looks like a sudden rush. Pure."""
    seen: dict[str, tuple[float, Counts]] = {}
    total = before.total
    for name, load in loads.items():
        counts = Counts(**{each: float(getattr(load, each)) for each in _COUNTED})
        known = before.seen.get(name)
        if known is not None and known[0] == load.since:
            total = _plus(total, counts, known[1])
        elif known is not None or 0.0 < before.at <= load.since:
            total = _plus(total, counts, Counts())
        seen[name] = (load.since, counts)
    # One that is silent for a moment is remembered: its counters go on where they were.
    gone = {name: known for name, known in before.seen.items() if name not in seen}
    return Tally(
        at=now,
        total=total,
        seen={**dict(list(gone.items())[-32:]), **seen},
        in_flight=sum(max(0, load.in_flight) for load in loads.values()),
        queued=sum(max(0, load.queued) for load in loads.values()),
    )


def _plus(total: Counts, now: Counts, before: Counts) -> Counts:
    return Counts(
        **{each: getattr(total, each) + max(0.0, getattr(now, each) - getattr(before, each)) for each in _COUNTED}
    )


def all_loads() -> dict[str, dict[str, DeploymentLoad]]:
    """By deployment and gateway, of the gateways that live. Raises one of UNAVAILABLE."""
    found: dict[str, dict[str, DeploymentLoad]] = {}
    for name in (each.decode() for each in cast("Iterable[bytes]", client().hkeys(GATEWAYS_KEY))):
        for deployment, packed in cast("dict[bytes, bytes]", client().hgetall(LOAD_PREFIX + name)).items():
            try:
                found.setdefault(deployment.decode(), {})[name] = _load.decode(packed)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue  # of a gateway that speaks another version
    return found


def with_adapters(
    loads: dict[str, dict[str, DeploymentLoad]], beside: Mapping[str, str]
) -> dict[str, dict[str, DeploymentLoad]]:
    """What is asked of an adapter is asked of its base's replicas: each counts as another gateway of the base. `beside`: base by
    adapter."""
    for adapter, base in beside.items():
        for name, load in loads.get(adapter, {}).items():
            loads.setdefault(base, {})[f"{name}/{adapter}"] = load
    return loads


def counters_of(tally: Tally) -> dict[str, Any]:
    """As an observation takes them. Gateways count tokens when a request is settled."""
    values = {each: getattr(tally.total, each) for each in _COUNTED}
    return {**values, "ended": tally.total.answers}
