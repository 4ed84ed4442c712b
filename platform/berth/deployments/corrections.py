"""What measured deployments of all organisations teach about hardware: numbers only, without whose they are."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone

from berth.deployments.measured import SPEED
from berth.deployments.models import IgnoredCorrection, PlanCheck
from berth.planner.learning import TPOT, TTFT, Factor, Key, Lesson, learn

REMEMBERED: Final = timedelta(days=90)  # older measurements teach nothing any more


def factors(now: datetime | None = None) -> Mapping[Key, Factor]:
    """What planning corrects its predictions with: everything that was learnt and that no operator set aside."""
    ignored = ignored_keys()
    return {key: factor for key, factor in learnt(now).items() if key not in ignored}


def learnt(now: datetime | None = None) -> Mapping[Key, Factor]:
    """Also what is set aside."""
    rows = (
        PlanCheck.objects.across_orgs("how fast hardware is, is the same for everybody")
        .exclude(expected=None)
        .filter(window_end__gte=(now or timezone.now()) - REMEMBERED)
        .order_by("id")
    )
    columns = ("deployment_id", "metric", "expected", "measured", "count")
    of_revision = ("revision__engine", "revision__artefact__quantization", "revision__tier")
    return learn(_lesson(*row) for row in rows.values_list(*columns, *of_revision))


def ignored_keys() -> set[Key]:
    return {row.key for row in IgnoredCorrection.objects.all()}


def ignore(key: Key) -> bool:
    """Plans are made without this factor from now on; whether it was used until now."""
    engine, scheme, hardware, metric = key
    _, made = IgnoredCorrection.objects.get_or_create(engine=engine, scheme=scheme, hardware=hardware, metric=metric)
    return made


def restore(key: Key) -> bool:
    """Whether it had been set aside."""
    engine, scheme, hardware, metric = key
    gone, _ = IgnoredCorrection.objects.filter(engine=engine, scheme=scheme, hardware=hardware, metric=metric).delete()
    return gone > 0


def _lesson(
    deployment: object, metric: str, expected: float, measured: float, count: int, engine: str, scheme: str, tier: str
) -> Lesson:
    """Times in seconds. `scheme` is as the planner calls it: the quantization of the files."""
    if metric == SPEED:
        return Lesson(str(deployment), engine, scheme, tier, TPOT, 1 / expected, 1 / measured, count)
    return Lesson(str(deployment), engine, scheme, tier, TTFT, expected / 1000, measured / 1000, count)
