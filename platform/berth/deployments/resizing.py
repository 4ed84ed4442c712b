"""Another number of replicas, and nothing else: what runs stays what it is.

Planning anew could choose other files or another engine, because better ones came meanwhile, and change everything under somebody who only
asked for one replica more. So the files, engine, options and hardware of the wanted revision are kept, and no replica is restarted. Whether
something better is known is told beside it (`better.py`).
"""

from __future__ import annotations

from copy import deepcopy
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.utils import timezone

from berth.compute.provider import Provider
from berth.deployments import better
from berth.deployments.history import record
from berth.deployments.models import Deployment, Revision
from berth.deployments.planning import make_plan, read_wishes
from berth.deployments.preparations import expect_replicas, is_placeholder, open_preparation
from berth.deployments.quotas import check_quota
from berth.deployments.revising import take_over
from berth.deployments.revisions import carry
from berth.deployments.rows import locked_as, wanted_changed
from berth.orgs.models import User
from berth.planner.explain import Reason
from berth.planner.needs import Pins
from berth.planner.shapes import Plan


def resize(
    deployment: Deployment,
    actor: User | None,
    before: Revision,
    count: int,
    *,
    reason: str = "",
    provider: Provider | None = None,
) -> Deployment | Reason:
    """`before` with so many replicas; what is being prepared will have as many. A smaller number is never refused: nothing has to find
    room for it. A Reason: more of them cannot be planned any more, and why. Raises Conflict (quota, or changed meanwhile), ApiError."""
    if is_placeholder(before) and open_preparation(deployment) is None:
        return Reason("never_made", "Its files were never made.", {})
    known: Plan | None = None
    if count > before.replicas and not is_placeholder(before):
        found = _still_fits(before, count, provider)
        if isinstance(found, Reason):
            return found
        known = found
    with transaction.atomic():
        row = locked_as(deployment, before)
        expect_replicas(row, count)
        if count != before.replicas:
            _want(row, actor, carry(row, actor, before, reason, replicas=count, plan=_plan_for(before, count)))
        row.failures = 0
        row.save(update_fields=["failures"])
        if known is not None and better.differs(before, known):
            record(row, "better_plan", timezone.now(), **better.named(known))
        wanted_changed(row)
    return row


def _want(row: Deployment, actor: User | None, revision: Revision) -> None:
    now = timezone.now()
    if not is_placeholder(revision):
        take_over(row, actor, revision, None, now)
        return
    row.revision = revision  # it never runs, so there is no way from it to anywhere
    row.save(update_fields=["revision"])
    record(row, "revision_created", now, actor=actor, number=revision.number)


def _still_fits(before: Revision, count: int, provider: Provider | None) -> Plan | Reason:
    """What would be planned today if nothing ran, where what runs can still be planned; else what speaks against that."""
    needs, pins = read_wishes(before.needs, before.plan.get("pins", {}))
    free = make_plan(before.version, needs, pins, count, provider=provider)
    planned = free
    if better.differs(before, free):
        planned = make_plan(before.version, needs, as_it_runs(before), count, provider=provider)
    if planned.choice is None:
        return better.what_speaks_against(before, planned)
    check_quota(before.deployment.org, planned.choice)
    return free


def as_it_runs(revision: Revision) -> Pins:
    """Everything that a plan may choose, as this revision has it."""
    return Pins(
        artefact_id=str(revision.artefact_id),
        engine=revision.engine,
        tier=revision.tier,
        context_length=revision.context_length,
        slots=revision.slots,
    )


def _plan_for(before: Revision, count: int) -> dict[str, Any]:
    """The plan as it was made, for another number of replicas."""
    plan: dict[str, Any] = deepcopy(before.plan)
    choice = plan.get("choice")
    if choice:
        choice["replicas"] = count
        if choice.get("price_per_hour") is not None:
            choice["price_per_hour"] = str(Decimal(choice["price_per_hour"]) / before.replicas * count)
    return plan
