"""A plan's id: what was planned for whom, sealed against changes and good for a quarter of an hour. Nothing is stored.

Whoever deploys with it gets what they saw, or is told what has changed since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from django.conf import settings
from django.core.signing import BadSignature, Signer

from berth.catalog.models import ModelVersion
from berth.planner.needs import Needs, Pins
from berth.planner.shapes import Choice, Plan
from berth.web.errors import ApiError, Conflict

VALID: Final = timedelta(minutes=15)
MOST: Final = 2_000  # characters
_SALT: Final = "berth.deployments.plan"
_NOTICED: Final = 0.05  # by how much measurements may move a predicted time before people are asked again
_CORRECTED: Final = ("speed_corrected", "first_token_corrected")


class Seen(msgspec.Struct, frozen=True):
    """Of a plan what people decide by, and Unix seconds until when it holds."""

    asked: str  # digest of organisation, version, needs, pins and replicas
    until: int
    choice: dict[str, Any]
    factors: dict[str, float]


def issue(version: ModelVersion, needs: Needs, pins: Pins, planned: Plan, replicas: int, now: datetime) -> str | None:
    """None: nothing fits, so there is nothing to deploy."""
    if planned.choice is None:
        return None
    seen = Seen(
        asked=_asked(version, needs, pins, replicas),
        until=int((now + VALID).timestamp()),
        choice=_decided(planned.choice),
        factors=_factors(planned.choice),
    )
    return Signer(salt=_SALT).sign_object(msgspec.to_builtins(seen), compress=True)


def check(
    plan_id: str, version: ModelVersion, needs: Needs, pins: Pins, planned: Plan, replicas: int, now: datetime
) -> None:
    """Raises Conflict `plan.stale` when the plan of now is not the one that was seen, or that is too long ago; ApiError (422) when the id
    is not one, or belongs to something else that was asked."""
    seen = _opened(plan_id)
    if seen is None or seen.asked != _asked(version, needs, pins, replicas):
        raise ApiError(
            "plan.unknown",
            "This plan was made for something else, or is none. Plan again and send the new plan_id.",
            field="plan_id",
            status=422,
        )
    if planned.choice is None:  # the caller says so, with what would help
        return
    changes = _differences(seen, planned.choice)
    expired = now.timestamp() > seen.until
    if changes or expired:
        again = issue(version, needs, pins, planned, replicas, now)
        raise _stale(changes, expired, again)


def _stale(changes: list[dict[str, Any]], expired: bool, again: str | None) -> Conflict:
    price = next((change for change in changes if change["field"] == "price_per_hour"), None)
    if price is not None:
        before, after = (_money(price[name]) for name in ("before", "after"))
        happened = f"Prices changed while you were deciding: this plan now costs {after} instead of {before}."
    elif changes:
        told = "; ".join(f"{change['field']} is {change['after']}, was {change['before']}" for change in changes)
        happened = f"What would run has changed while you were deciding: {told}."
    else:
        happened = "This plan is older than 15 minutes."
    return Conflict(
        "plan.stale",
        f"{happened} Check it and confirm again with the new plan_id.",
        field="plan_id",
        params={"differences": changes, "expired": expired, "plan_id": again, "currency": settings.CURRENCY},
    )


def _money(price: str | None) -> str:
    return "an unknown price" if price is None else f"{price} {settings.CURRENCY} an hour"


def _differences(seen: Seen, choice: Choice) -> list[dict[str, Any]]:
    before, after = dict(seen.choice), _decided(choice)
    speed = (before.pop("tokens_per_second", None), after.pop("tokens_per_second"))
    first = (before.pop("ttft_ms", None), after.pop("ttft_ms"))
    found = [
        {"field": name, "before": before.get(name), "after": after[name]}
        for name in after
        if before.get(name) != after[name]
    ]
    # The machine's own speed is measured anew by every process; only what was learnt in between counts as a change.
    factors = _factors(choice)
    for code, name, (old, new) in zip(_CORRECTED, ("tokens_per_second", "ttft_ms"), (speed, first), strict=True):
        if _moved(seen.factors.get(code, 1.0), factors.get(code, 1.0)):
            found.append({"field": name, "before": old, "after": new})
    return found


def _moved(before: float, after: float) -> bool:
    return abs(after / before - 1) > _NOTICED


def _decided(choice: Choice) -> dict[str, Any]:
    predicted, price = choice.predicted, choice.price_per_hour
    return {
        "price_per_hour": None if price is None else str(price),
        "engine": choice.engine,
        "quantization": choice.quantization,
        "artefact_id": choice.artefact_id,
        "tier": choice.tier,
        "context_length": choice.context_length,
        "slots": choice.slots,
        "replicas": choice.replicas,
        "tokens_per_second": predicted.tokens_per_second.value if predicted.tokens_per_second else None,
        "ttft_ms": predicted.ttft_ms.value if predicted.ttft_ms else None,
    }


def _factors(choice: Choice) -> dict[str, float]:
    return {each.code: float(each.params["factor"]) for each in choice.reasons if each.code in _CORRECTED}


def _asked(version: ModelVersion, needs: Needs, pins: Pins, replicas: int) -> str:
    plain: list[Any] = [
        str(version.org_id), str(version.pk), msgspec.to_builtins(needs), msgspec.to_builtins(pins), replicas,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _opened(plan_id: str) -> Seen | None:
    if len(plan_id) > MOST:
        return None
    try:
        plain: Mapping[str, Any] = Signer(salt=_SALT).unsign_object(plan_id)
        return msgspec.convert(plain, Seen)
    except (BadSignature, ValueError, msgspec.ValidationError):
        return None
