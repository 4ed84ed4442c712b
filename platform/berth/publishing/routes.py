"""From deployments and their replicas to routes: what a request for a name meets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median
from uuid import UUID

import msgspec
from django.db.models import F, Q

from berth.billing.prices import PriceBook, book_for
from berth.billing.spending import pico
from berth.deployments import models as rooms
from berth.deployments.adapters import number_in
from berth.deployments.secrets import replica_secret
from berth.deployments.traffic import Split, split
from berth.deployments.waking import sleep_of
from berth.orgs.limits import for_gateways
from berth_gateway.contract import PRICE_CEILING, Price, Replica, RevisionWeight, Route, RouteState, Shadow

_STARTING_PHASES = frozenset({"fetching", "verifying", "loading", "warming"})
_STARTING_STATES = frozenset({rooms.State.QUEUED, rooms.State.STARTING, rooms.State.UPDATING, rooms.State.ASLEEP})
_HAVE_RESPONSES = frozenset({"llamacpp", "vllm"})
_HISTORY = 200  # latest starts that say how long one usually takes


def route_state(state: str, desired: str, *, any_ready: bool, any_starting: bool, sleeping: bool = False) -> RouteState:
    """What a request meets. A replica that answers serves in every state but a wanted pause: an update drops nothing."""
    if desired == rooms.Desired.PAUSED:
        return RouteState.PAUSED
    if any_ready:
        return RouteState.READY
    if sleeping:
        return RouteState.ASLEEP
    if state == rooms.State.FAILED:
        return RouteState.UNAVAILABLE
    if any_starting or state in _STARTING_STATES:
        return RouteState.LOADING
    # Wanted to run again after a pause, but the reconciler has not looked yet: it is about to start.
    return RouteState.LOADING if state in {rooms.State.PAUSED, rooms.State.STOPPING} else RouteState.UNAVAILABLE


def build_routes(now: datetime, left_out: frozenset[str] = frozenset()) -> tuple[Route, ...]:
    """Routes of every deployment that is not being deleted, by name. Nothing is kept of requests to those `left_out`, by id."""
    # Replicas before deployments: one that appears in between belongs to a change that is still to be published.
    replicas: dict[UUID, list[rooms.Replica]] = defaultdict(list)
    living = rooms.Replica.objects.across_orgs("the snapshot tells gateways of every replica").filter(ended_at=None)
    for replica in living.select_related("revision__version").order_by("deployment_id", "ordinal", "name"):
        replicas[replica.deployment_id].append(replica)
    usual = _usual_seconds()
    deployments = list(
        rooms.Deployment.objects.across_orgs("the snapshot tells gateways of every deployment")
        .exclude(Q(state=rooms.State.DELETED) | Q(desired=rooms.Desired.DELETED))
        .exclude(revision=None)
        .select_related("org", "revision__version", "beside__org", "beside__revision__version")
        .order_by("org__slug", "name")
    )
    book = book_for({deployment.org_id for deployment in deployments})
    routes = (_route_of(each, replicas, usual, book, now) for each in deployments)
    return tuple(
        msgspec.structs.replace(route, recorded=False) if route.deployment_id in left_out else route for route in routes
    )


def _route_of(
    deployment: rooms.Deployment,
    replicas: Mapping[UUID, list[rooms.Replica]],
    usual: Mapping[UUID, float],
    book: PriceBook,
    now: datetime,
) -> Route:
    base = deployment.beside
    if base is None:
        return _route(deployment, replicas.get(deployment.pk, []), usual.get(deployment.pk), book, now)
    living = replicas.get(base.pk, [])
    carrying = [each for each in living if number_in(each.revision, deployment.pk) is not None]
    serving = _route(base, carrying, usual.get(base.pk), book, now)
    return _beside(serving, deployment, base, carrying, _prices(deployment, book, now))


def _beside(
    serving: Route,
    deployment: rooms.Deployment,
    base: rooms.Deployment,
    carrying: Sequence[rooms.Replica],
    prices: tuple[Price, ...],
) -> Route:
    """The route of an adapter, from that of its base to the replicas that load it. All of them know it by the same number."""
    wanted = deployment.revision
    if wanted is None:  # excluded by the query
        raise ValueError("a route needs a revision")
    numbers = {each.name: (number_in(each.revision, deployment.pk), each.revision.number) for each in carrying}
    ready = [each for each in serving.replicas if each.name in numbers]
    newest = max((numbers[each.name] for each in ready), key=lambda one: one[1], default=(None, 0))[0]
    replicas = tuple(msgspec.structs.replace(each, revision=None) for each in ready if numbers[each.name][0] == newest)
    state = _state_beside(deployment, base, answering=bool(replicas))
    name = f"{deployment.org.slug}/{deployment.name}"
    return msgspec.structs.replace(
        serving,
        name=name,
        deployment_id=str(deployment.pk),
        revision=wanted.number,
        state=state,
        engine_model=name,
        created=int(deployment.created_at.timestamp()),
        replicas=replicas if state is RouteState.READY else (),
        weights=(),
        shadow=None,
        ready_in_seconds=serving.ready_in_seconds if state is RouteState.LOADING else None,
        asleep_since=sleep_of(base) if state is RouteState.ASLEEP else None,
        hold_seconds=deployment.hold_seconds,
        limits=for_gateways(deployment.limit_rpm, deployment.limit_tpm, deployment.limit_concurrency),
        adapter=newest,
        prices=prices,
    )


def _state_beside(deployment: rooms.Deployment, base: rooms.Deployment, *, answering: bool) -> RouteState:
    """From the base alone: what the adapter's own row says of it may be a moment old, and no request is lost for that."""
    if rooms.Desired.PAUSED in (deployment.desired, base.desired):
        return RouteState.PAUSED
    if answering:
        return RouteState.READY
    if base.sleeping:
        return RouteState.ASLEEP
    carried = base.revision is not None and number_in(base.revision, deployment.pk) is not None
    return RouteState.LOADING if carried and base.state != rooms.State.FAILED else RouteState.UNAVAILABLE


def _route(
    deployment: rooms.Deployment, replicas: list[rooms.Replica], usual: float | None, book: PriceBook, now: datetime
) -> Route:
    answering = [replica for replica in replicas if replica.phase == "ready" and replica.port is not None]
    parts = speaking_alike(split(deployment.traffic, answering, _revision_of))
    ready = parts.serving
    starting = [replica for replica in replicas if replica.phase in _STARTING_PHASES]
    sleeping = deployment.sleeping
    state = route_state(
        deployment.state,
        deployment.desired,
        any_ready=bool(ready),
        any_starting=bool(starting) and not sleeping,
        sleeping=sleeping,
    )
    wanted = deployment.revision
    if wanted is None:  # excluded by the query
        raise ValueError("a route needs a revision")
    # While revisions overlap, the route promises only what each of the serving ones can hold.
    revisions = {replica.revision_id: replica.revision for replica in ready} or {wanted.pk: wanted}
    newest = max(revisions.values(), key=lambda revision: revision.number)
    chat = all(bool(revision.version.facts.get("has_chat_template")) for revision in revisions.values())
    name = f"{deployment.org.slug}/{deployment.name}"
    return Route(
        name=name,
        org_id=str(deployment.org_id),
        deployment_id=str(deployment.pk),
        revision=newest.number,
        state=state,
        engine=newest.engine,
        engine_model=name,
        endpoints=_endpoints(newest.engine, newest.version.facts.get("pooling"), chat=chat),
        context_length=min(revision.context_length for revision in revisions.values()),
        created=int(deployment.created_at.timestamp()),
        replicas=tuple(_replica(replica, deployment) for replica in ready) if state is RouteState.READY else (),
        weights=tuple(RevisionWeight(revision, weight) for revision, weight in parts.weights),
        shadow=Shadow(tuple(_replica(replica, deployment) for replica in parts.shadow), parts.percent)
        if parts.shadow
        else None,
        ready_in_seconds=_time_left(starting, usual, now) if state is RouteState.LOADING else None,
        asleep_since=sleep_of(deployment) if sleeping else None,
        hold_seconds=deployment.hold_seconds,
        limits=for_gateways(deployment.limit_rpm, deployment.limit_tpm, deployment.limit_concurrency),
        adapter=number_in(newest, deployment.pk),
        carries=any(revision.adapters for revision in revisions.values()),
        prices=_prices(deployment, book, now),
    )


def _endpoints(engine: str, pooling: str | None, *, chat: bool) -> tuple[str, ...]:
    """What can be asked of it. Anthropic's messages are a chat to every engine; responses only some have."""
    if pooling is not None:
        return ("rerank",) if pooling == "rank" else ("embeddings",)
    if not chat:
        return ("completions",)
    more = ("responses",) if engine in _HAVE_RESPONSES else ()
    return ("chat/completions", "completions", *more, "messages")


def _prices(deployment: rooms.Deployment, book: PriceBook, now: datetime) -> tuple[Price, ...]:
    """Today's and those announced. A gateway counts in 64 bits; a price beyond them exceeds every budget anyway."""
    return tuple(
        Price(
            valid_from=since.timestamp(),
            input=min(pico(version.input_token), PRICE_CEILING),
            cached=min(pico(version.cached_token), PRICE_CEILING),
            output=min(pico(version.output_token), PRICE_CEILING),
        )
        for since, version in book.schedule(deployment.org_id, deployment.pk, now)
    )


def _revision_of(replica: rooms.Replica) -> int:
    return replica.revision.number


def _replica(replica: rooms.Replica, deployment: rooms.Deployment) -> Replica:
    slots, limit = replica.revision.slots, deployment.replica_limit
    if limit is not None and replica.revision.number == deployment.replica_limit_revision:
        slots = min(slots, limit)  # what scaling found out that it can hold within the goals
    return Replica(
        name=replica.name,
        host=replica.host,
        port=replica.port or 0,
        secret=replica_secret(replica.name),
        slots=slots,
        revision=replica.revision.number,
    )


def speaking_alike(parts: Split[rooms.Replica]) -> Split[rooms.Replica]:
    """What of a split can be one route, which has one engine: where requests are weighed, that of the heavier side, else that of
    the newest revision. Others of that engine serve on during an update; a shadow of another engine could not read the copies."""
    if not parts.serving:
        return parts
    shares: dict[str, tuple[int, int]] = {}
    weights = dict(parts.weights)
    for replica in parts.serving:
        revision = replica.revision
        weight, newest = shares.get(revision.engine, (0, 0))
        heavier = weights.pop(revision.number, 0)  # each revision counts once
        shares[revision.engine] = (weight + heavier, max(newest, revision.number))
    engine = max(shares, key=lambda name: shares[name])
    serving = tuple(each for each in parts.serving if each.revision.engine == engine)
    numbers = {each.revision.number for each in serving}
    shadow = tuple(each for each in parts.shadow if each.revision.engine == engine)
    return Split(
        serving=serving,
        weights=tuple(pair for pair in parts.weights if pair[0] in numbers),
        shadow=shadow,
        percent=parts.percent if shadow else 0,
    )


def _time_left(starting: list[rooms.Replica], usual: float | None, now: datetime) -> int | None:
    """Seconds until the replica that began first is usually ready, at least 1. None when no start was ever measured."""
    if usual is None:
        return None
    elapsed = max(((now - replica.started_at).total_seconds() for replica in starting), default=0.0)
    return max(1, round(usual - elapsed))


def _usual_seconds() -> dict[UUID, float]:
    """Median seconds from start to ready, by deployment."""
    starts: dict[UUID, list[float]] = defaultdict(list)
    history = (
        rooms.Replica.objects.across_orgs("how long starts usually take, for the snapshot")
        .exclude(ready_at=None)
        .annotate(took=F("ready_at") - F("started_at"))
        .order_by("-id")
        .values_list("deployment_id", "took")[:_HISTORY]
    )
    for deployment_id, took in history:
        starts[deployment_id].append(max(0.0, took.total_seconds()))
    return {deployment_id: median(values) for deployment_id, values in starts.items()}
