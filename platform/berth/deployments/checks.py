"""Planned against measured: for each revision that serves, from its latest requests. Doing it again changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from berth.catalog.facts import artefact_facts, model_facts
from berth.compute.provider import Provider
from berth.deployments.measured import ALONE, SPEED, Measured, measure
from berth.deployments.memory_checks import check_memory
from berth.deployments.models import Deployment, PlanCheck, Revision, State
from berth.deployments.planning import tier_of
from berth.metering.selectors import served, used_lately
from berth.planner.performance import first_token_ms, tokens_per_second
from berth.planner.tiers import Tier

WINDOW: Final = timedelta(days=7)
LATEST: Final = 500  # requests of a revision that are looked at


def check_plans(provider: Provider, now: datetime) -> int:
    """How many figures were written. Raises ProviderError when the provider does not say what it has."""
    tiers = {offer.key: tier_of(offer) for offer in provider.offers()}
    busy = used_lately(now, WINDOW)
    rows = (
        Deployment.objects.across_orgs("every deployment that served is measured")
        .filter(pk__in=busy)
        .exclude(state=State.DELETED)
        .exclude(revision=None)
        .filter(beside=None)  # what an adapter does is no measure of a plan: it shares its base's replicas
        .select_related("revision__artefact", "revision__version")
    )
    requests = sum(_check(deployment, tiers, now) for deployment in rows.order_by("id"))
    return requests + check_memory(provider.observe_all(), now)


def _check(deployment: Deployment, tiers: Mapping[str, Tier], now: datetime) -> int:
    revision = deployment.revision
    if revision is None:  # left out by the query
        return 0
    requests = served(deployment.org_id, deployment.pk, revision.number, now - WINDOW, limit=LATEST)
    found = measure(requests, revision.replicas)
    for one in found:
        _write(deployment, revision, one, expected(revision, tiers.get(revision.tier), one))
    return len(found)


def expected(revision: Revision, tier: Tier | None, one: Measured) -> float | None:
    """What the planner says, without anything learnt, for the load that was measured: what measurements may be compared with.
    None: it cannot say, or other requests stood in the way of a first token."""
    if tier is None:
        return None
    model, files = model_facts(revision.version.facts), artefact_facts(revision.artefact.facts)
    if one.metric == SPEED:
        running = max(1, min(revision.slots, round(one.load)))
        found = tokens_per_second(model, files, tier, context_length=2 * one.context, concurrency=running)
    elif one.load <= ALONE:
        found = first_token_ms(model, files, tier, prompt_tokens=max(1, one.fresh_tokens))
    else:
        found = None
    return found.value if found is not None and found.value > 0 else None


def _write(deployment: Deployment, revision: Revision, one: Measured, fair: float | None) -> None:
    values = {
        "planned": planned(revision, one.metric),
        "expected": fair,
        "measured": one.value,
        "count": one.count,
        "load": one.load,
        "window_start": datetime.fromtimestamp(one.since, UTC),
        "window_end": datetime.fromtimestamp(one.until, UTC),
    }
    same = {"org_id": deployment.org_id, "deployment": deployment}
    PlanCheck.objects.for_org(deployment.org_id).update_or_create(
        revision=revision, metric=one.metric, defaults=values, create_defaults=values | same
    )


def planned(revision: Revision, metric: str) -> float | None:
    """What the revision's own plan said. None: it said nothing of it."""
    predicted = ((revision.plan.get("choice") or {}).get("predicted") or {}).get(metric)
    return float(predicted["value"]) if predicted else None
