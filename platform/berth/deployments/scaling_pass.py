"""One look at all deployments that may be scaled: what gateways see and the plan become an observation, the decision is carried out
and written down."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from django.db.models import Count, Q, QuerySet

from berth.deployments.autoscale import autoscale
from berth.deployments.models import Deployment, Desired, PlanCheck, Replica, Revision, ScalingDecision, State
from berth.deployments.outlook import cold_start
from berth.deployments.replicas import bounds_of, set_desired_replicas, set_replica_limit, wanted_replicas
from berth.deployments.scaling.decision import Decision
from berth.deployments.scaling.observation import Capacity, Goals, Observation, Peak, Policy
from berth.deployments.scaling_capacity import Pace, capacity_of, planned_speed, typical_of
from berth.deployments.scaling_engines import Gauges, heard
from berth.deployments.scaling_lease import claim
from berth.deployments.scaling_load import Tally, all_loads, counters_of, summed, with_adapters
from berth.deployments.scaling_memory import Memory, recall, remember
from berth.deployments.scaling_wishes import Wishes, wishes_of
from berth.planner.learning import LEAST
from berth_gateway.contract import DeploymentLoad

log = logging.getLogger(__name__)

QUIET: Final = 120.0  # seconds without a request after which a deployment at its least is not looked at
PAUSE: Final = 20.0  # seconds between two looks after which the time between them counts as one without requests
KEPT: Final = 200  # decisions of a deployment
FAR: Final = 1.25  # times: a limit that is closer to the one in force is not worth telling every gateway


def scale_all(holder: UUID, now: datetime) -> int | None:
    """How many deployments had something to decide. None: another scaler holds the lease. Raises one of UNAVAILABLE: nothing is
    scaled while nobody knows the load."""
    fence = claim(holder, now)
    if fence is None:
        return None
    loads, engines = with_adapters(all_loads(), _beside()), heard()
    count = 0
    for deployment in scalable():
        seen = loads.get(str(deployment.pk), {})
        if not idle(deployment, seen, now):
            scale(deployment, seen, fence, now, engines.get(str(deployment.pk), Gauges()))
            count += 1
    return count


def _beside() -> dict[str, str]:
    """Base by adapter."""
    rows = Deployment.objects.across_orgs("scaling looks after the deployments of all organisations")
    found = rows.exclude(beside=None).exclude(state=State.DELETED).values_list("pk", "beside_id")
    return {str(adapter): str(base) for adapter, base in found}


def scalable() -> QuerySet[Deployment]:
    """Running, with a least and a most that differ."""
    rows = Deployment.objects.across_orgs("scaling looks after the deployments of all organisations")
    alive = Q(replicas__ended_at=None, replicas__retired_at=None)
    return (
        rows.filter(desired=Desired.RUNNING)
        .exclude(revision=None)
        .exclude(min_replicas=None, max_replicas=None)
        .exclude(state=State.FAILED)
        .select_related("revision__artefact")
        .annotate(
            ready=Count("replicas", filter=alive & Q(replicas__phase="ready")),
            alive=Count("replicas", filter=alive),
        )
        .order_by("pk")
    )


def idle(deployment: Deployment, loads: Mapping[str, DeploymentLoad], now: datetime) -> bool:
    """Nobody asked for a while, and it has the least already: there is nothing to decide, and thousands of such cost nothing."""
    if deployment.revision is None or deployment.peaks:
        return False
    if wanted_replicas(deployment, deployment.revision) > max(1, bounds_of(deployment, deployment.revision).least):
        return False
    since = now.timestamp() - QUIET
    return all(not load.in_flight and not load.queued and load.active_at < since for load in loads.values())


def scale(
    deployment: Deployment,
    loads: Mapping[str, DeploymentLoad],
    fence: int,
    now: datetime,
    engines: Gauges = Gauges(),  # noqa: B008 - frozen
) -> Decision | None:
    """None: a younger scaler has spoken, or its bounds leave no choice."""
    revision = deployment.revision
    if revision is None:
        return None
    bounds = bounds_of(deployment, revision)
    if bounds.least >= bounds.most:
        return None
    memory = recall(deployment.pk)
    if memory.fence > fence:
        return None
    tally = summed(memory.tally, loads, now.timestamp())
    memory = msgspec.structs.replace(memory, pace=paced(memory, tally))
    observation = observe(deployment, revision, memory, counters_of(tally), tally.in_flight, tally.queued, now, engines)
    state = memory.state
    if state.now is not None and observation.now - state.now > PAUSE:
        # It was idle: what came now did not come little by little.
        quiet = msgspec.structs.replace(
            observation, now=observation.now - 2.0, in_flight=0.0, queued=0.0, **counters_of(memory.tally)
        )
        _, state = autoscale(quiet, state)
    decision, state = autoscale(observation, state)
    before = wanted_replicas(deployment, revision)
    reason = decision.reasons[0].code if decision.reasons else ""
    held = set_desired_replicas(
        deployment.pk, decision.desired, fence=fence, reason=reason, data={"need": round(decision.need, 2)}
    )
    if held is None:
        return None
    limit_replicas(deployment, revision, decision.concurrency)
    if held != before or reason != memory.reason:
        write_down(deployment, before, held, decision, observation)
    kept = msgspec.structs.replace(state, desired=held)
    remember(deployment.pk, Memory(fence, tally, kept, reason, memory.pace))
    return decision


def observe(
    deployment: Deployment,
    revision: Revision,
    memory: Memory,
    counters: Mapping[str, Any],
    in_flight: int,
    queued: int,
    now: datetime,
    engines: Gauges,
) -> Observation:
    """Sleeping is the reconciler's: scaling never asks for less than one replica."""
    bounds = bounds_of(deployment, revision)
    ready, alive = _replicas(deployment)
    wishes = wishes_of(deployment.scaling)
    goals = goals_of(revision, wishes)
    return Observation(
        now=now.timestamp(),
        ready=ready,
        starting=max(0, alive - ready),
        in_flight=float(in_flight),
        queued=float(queued),
        policy=Policy(
            least=max(1, bounds.least),
            most=bounds.most,
            peaks=tuple(msgspec.convert(deployment.peaks, list[Peak])),
            goals=goals,
            stabilisation=wishes.stabilisation_seconds,
            head_room=wishes.head_room,
            daily=wishes.daily,
        ),
        capacity=capacity(revision, memory, goals, in_flight / max(1, ready)),
        cold_start=max(1.0, cold_start(revision)),
        engine_queue=None if engines.queued is None else float(engines.queued),
        cache_use=engines.cache_use,
        **counters,
    )


def goals_of(revision: Revision, wishes: Wishes) -> Goals:
    """As the deployment's needs name them; what they do not name is no goal."""
    needs = revision.needs if isinstance(revision.needs, dict) else {}
    first, speed = needs.get("ttft_ms"), needs.get("tokens_per_second")
    return Goals(
        first_token_seconds=first / 1e3 if first else None,
        token_seconds=1.0 / speed if speed else None,
        share=wishes.share,
    )


def paced(memory: Memory, tally: Tally) -> Pace:
    """With what was answered since the last look; nobody knows how long requests took that are still under way."""
    now, before = tally.total, memory.tally.total
    if not memory.tally.at:
        return memory.pace
    first = now.first_token_seconds - before.first_token_seconds - (now.queue_seconds - before.queue_seconds)
    seconds = max(0.0, first) + now.decode_seconds - before.decode_seconds
    return memory.pace.with_answers(now.answers - before.answers, seconds, tally.at - memory.tally.at)


def capacity(revision: Revision, memory: Memory, goals: Goals, beside: float) -> Capacity:
    """Of one replica: planned, corrected by what its plan's figures turned out to be, for requests as they were lately, and never less
    than what replicas are seen to do. `beside`: requests in a replica now."""
    checks = PlanCheck.objects.for_org(revision.org_id).filter(revision=revision, count__gte=LEAST)
    rows = checks.exclude(expected=None).values_list("metric", "measured", "expected")
    measured = {metric: (value, fair) for metric, value, fair in rows if fair is not None}
    return capacity_of(
        revision.slots,
        planned_speed(revision.plan, measured),
        typical_of(memory.state.mix),
        goal=goals.first_token_seconds,
        share=goals.share,
        busy_at_most=memory.pace.busy(beside),
    )


def limit_replicas(deployment: Deployment, revision: Revision, concurrency: int | None) -> None:
    """Tells gateways how many requests a replica of this revision gets at once; what is nearly in force stays."""
    slots = revision.slots
    wanted = slots if concurrency is None else min(slots, concurrency)
    own = deployment.replica_limit if deployment.replica_limit_revision == revision.number else None
    now = slots if own is None else own
    if wanted == now or (wanted < slots and now / FAR < wanted < now * FAR):
        return
    set_replica_limit(deployment, revision, None if wanted >= slots else wanted)


def _replicas(deployment: Deployment) -> tuple[int, int]:
    found: Any = deployment  # annotated by `scalable`
    if hasattr(found, "ready"):
        return int(found.ready), int(found.alive)
    rows = Replica.objects.for_org(deployment.org_id).filter(deployment=deployment, ended_at=None, retired_at=None)
    return rows.filter(phase="ready").count(), rows.count()


def write_down(deployment: Deployment, before: int, after: int, decision: Decision, observation: Observation) -> None:
    """A row, and no more rows than are looked at."""
    rows = ScalingDecision.objects.for_org(deployment.org_id)
    rows.create(
        org_id=deployment.org_id,
        deployment=deployment,
        before=before,
        desired=after,
        reasons=[msgspec.to_builtins(each) for each in decision.reasons],
        figures=figures_of(decision, observation),
    )
    old = rows.filter(deployment=deployment).order_by("-id").values_list("id", flat=True)[KEPT : KEPT + 50]
    rows.filter(pk__in=list(old)).delete()


def figures_of(decision: Decision, observation: Observation) -> dict[str, float | int | None]:
    """Requests a second; replicas; requests."""
    return {
        "rate": round(decision.rate, 4),
        "forecast": round(decision.forecast, 4),
        "need": round(decision.need, 3),
        "capacity": None if decision.capacity is None else round(decision.capacity, 4),
        "head_room": round(decision.head_room, 3),
        "ready": observation.ready,
        "starting": observation.starting,
        "in_flight": int(observation.flying),
        "queued": int(observation.held),
        "cold_start_seconds": round(observation.cold_start, 1),
        "concurrency": decision.concurrency,
    }
