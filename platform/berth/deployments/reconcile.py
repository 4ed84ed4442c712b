"""The reconciler: claim, observe, decide, write down, act, let go.

Nothing outside the database happens inside a transaction, and nothing is written without the lease token. A place for a
replica is recorded before it is started, so whoever comes after a crash finds it and starts the same name again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db import connection, transaction

from berth.catalog.store import GRANT_SECONDS
from berth.compute.provider import NoCapacity, ObservedReplica, Provider, ProviderError, ProviderUnavailable
from berth.deployments import beside, lease, preparing
from berth.deployments.activity import last_request_at
from berth.deployments.course import compare, move, traffic_of
from berth.deployments.decision import JUDGE, Decision, Start, Stop
from berth.deployments.history import record
from berth.deployments.launching import launch_spec
from berth.deployments.models import Deployment, Desired, Replica, Rollout, Status
from berth.deployments.outlook import PHASES
from berth.deployments.planning import ground_on, room_on
from berth.deployments.rollouts import open_rollout
from berth.deployments.secrets import replica_secret
from berth.deployments.states import State
from berth.deployments.step import step
from berth.deployments.view import living, look, set_fields, wanted_of
from berth.deployments.writing import tell_phase, write_down, write_state, write_traffic, write_wait
from berth.outbox.services import announce

log = logging.getLogger(__name__)

PROVIDER_PAUSE = timedelta(seconds=5)
NO_ROOM_PAUSE = timedelta(seconds=3)
# A third of what grants are good for: whoever begins now has them for longer than a start may take.
RENEW_AFTER = timedelta(seconds=GRANT_SECONDS / 3)
KEPT_ENDED = 3  # ended replicas of a deployment whose logs stay readable
_ADMISSION_LOCK = 0x62657274  # Postgres advisory lock: memory is handed out by one reconciler at a time

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


def reconcile(deployment_id: UUID, provider: Provider, clock: Clock = utc_now) -> datetime | None:
    """One look. Returns when to look again; None: it was not due, is held by somebody else, or was taken from us."""
    deployment = lease.claim(deployment_id, clock())
    if deployment is None:
        return None
    try:
        check_at = _look(deployment, provider, clock)
    except ProviderUnavailable as away:
        log.warning("provider_unavailable", extra={"deployment_id": str(deployment_id), "provider": provider.name})
        _explain(deployment, "provider_unavailable", str(away), clock())
        check_at = clock() + PROVIDER_PAUSE
    return lease.release(deployment, check_at, clock())


def _look(deployment: Deployment, provider: Provider, clock: Clock) -> datetime:
    if deployment.beside_id is not None:
        return beside.look(deployment, clock())
    revision = deployment.revision
    if revision is None:  # services make both in one transaction
        raise ValueError("a deployment without a revision")
    prepared_at = preparing.look(deployment, provider, clock())
    if prepared_at is not None:
        return prepared_at
    observed = {replica.name: replica for replica in provider.observe(str(deployment.pk))}
    offers = provider.offers()
    room, ground = room_on(offers, revision), ground_on(offers, revision)
    rollout = open_rollout(deployment)
    compared = compare(deployment, rollout)
    asked = last_request_at(deployment, clock()) if deployment.sleep_after_seconds is not None else None
    now = clock()
    with transaction.atomic():
        row = lease.locked(deployment)
        if row is None:
            return now
        if (row.desired, row.revision_id) != (deployment.desired, deployment.revision_id):
            return now  # what is wanted has just changed: look again with that
        before, rollout = rollout, open_rollout(row)
        if (rollout.pk if rollout else None) != (before.pk if before else None):
            return now
        replicas = list(living(row))
        seen = list(observed.values())
        wanted = wanted_of(row, revision, rollout)
        wanted, world = look(row, revision, wanted, replicas, seen, room, now, asked, ground)
        if rollout is not None and row.desired == Desired.RUNNING and move(row, rollout, wanted, world, compared, now):
            announce("routes")
            return now  # another revision or another share is wanted: look again with that
        decision = step(wanted, world)
        if _starts_new(decision):
            _one_at_a_time()
            wanted, world = look(row, revision, wanted, replicas, seen, room, now, asked, ground)
            decision = step(wanted, world)
        write_traffic(row, traffic_of(row, rollout, wanted, replicas))
        revisions = {each.number: each for each in (revision, rollout.base if rollout else None) if each}
        if write_down(row, revisions, replicas, observed, world, decision, now, ground.devices):
            beside.follow(row)
        write_wait(row, revision, world, decision, now)
    deployment.state = row.state
    failed = _act(deployment, decision, provider, clock)
    _forget(deployment, observed, provider)
    _renew(deployment, provider, clock)
    if failed is not None:
        return clock() + failed
    check_at = min(datetime.fromtimestamp(decision.check_at, UTC), preparing.next_look(deployment, now))
    return min(check_at, now + timedelta(seconds=JUDGE)) if _is_judged(row, rollout) else check_at


def _is_judged(row: Deployment, rollout: Rollout | None) -> bool:
    """Whether time alone can change something about its rollout."""
    going_on = rollout is not None and rollout.status in (Status.PROGRESSING, Status.WATCHING)
    return going_on and row.desired == Desired.RUNNING and row.state != State.ASLEEP


def _starts_new(decision: Decision) -> bool:
    return any(isinstance(action, Start) and action.new for action in decision.actions)


def _one_at_a_time() -> None:
    """Memory is handed out by one transaction at a time: what the one before took is seen by the next."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_ADMISSION_LOCK])


def _act(deployment: Deployment, decision: Decision, provider: Provider, clock: Clock) -> timedelta | None:
    """Carries a decision out while the lease is ours. Returns how long to wait when the provider had no room or refused."""
    pause = None
    for action in decision.actions:
        if not lease.holds(deployment, clock()):
            return None
        if isinstance(action, Stop):
            provider.stop(action.name, drain_seconds=action.drain_seconds)
        elif isinstance(action, Start):
            pause = _start(deployment, action, provider, clock) or pause
    return pause


def _start(deployment: Deployment, action: Start, provider: Provider, clock: Clock) -> timedelta | None:
    replica = (
        Replica.objects.for_org(deployment.org_id)
        .select_related("revision", "deployment__org")
        .filter(name=action.name, ended_at=None)
        .first()
    )
    if replica is None:
        return None
    try:
        provider.start(launch_spec(replica), replica_secret(replica.name))
    except NoCapacity as full:
        _no_room(deployment, replica, str(full), clock())
        return NO_ROOM_PAUSE
    except ProviderUnavailable:
        raise
    except ProviderError as refused:
        _refused(deployment, replica, str(refused), clock())
        return timedelta(seconds=1)
    _note_grants(replica, clock())
    if action.new:
        record(deployment, "replica_started", clock(), replica=replica.name, revision=action.revision)
    return None


def _renew(deployment: Deployment, provider: Provider, clock: Clock) -> None:
    """Grants to read files end after minutes, and a pod may wait for a node much longer than that."""
    waits = Replica.objects.for_org(deployment.org_id).filter(
        deployment=deployment, ended_at=None, retired_at=None, phase__in=PHASES, granted_at__lt=clock() - RENEW_AFTER
    )
    for replica in waits.select_related("revision__version", "revision__artefact", "deployment__org"):
        if not lease.holds(deployment, clock()):
            return
        provider.renew(launch_spec(replica), replica_secret(replica.name))
        _note_grants(replica, clock())


def _note_grants(replica: Replica, now: datetime) -> None:
    Replica.objects.for_org(replica.org_id).filter(pk=replica.pk).update(granted_at=now)


@transaction.atomic
def _no_room(deployment: Deployment, replica: Replica, message: str, now: datetime) -> None:
    """Frees a place at once: the machine has less memory than the plan counted on, because something else took it."""
    row = lease.locked(deployment)
    if row is None:
        return
    replica.delete()
    state = State(row.state) if living(row).exists() else State.QUEUED
    waiting = Decision((), state, "no_capacity", message[:400], now.timestamp(), row.failures, waiting=True)
    if row.waiting_since is None:
        row.waiting_since = now
        row.save(update_fields=["waiting_since"])
    if write_state(row, waiting, now):
        announce("routes")


@transaction.atomic
def _explain(deployment: Deployment, reason: str, message: str, now: datetime) -> None:
    """Says why nothing moves. The next look that succeeds says something else."""
    row = lease.locked(deployment)
    if row is not None:
        write_state(row, Decision((), State(row.state), reason, message[:400], now.timestamp(), row.failures), now)


@transaction.atomic
def _refused(deployment: Deployment, replica: Replica, message: str, now: datetime) -> None:
    """A start that the provider refuses is a failure like any other."""
    row = lease.locked(deployment)
    if row is None:
        return
    changed = set_fields(
        replica, {"phase": "failed", "reason": "start_refused", "message": message[:400], "ended_at": now}
    )
    replica.save(update_fields=changed)
    row.failures += 1
    row.save(update_fields=["failures"])
    tell_phase(row, replica, now)


def _forget(deployment: Deployment, observed: dict[str, ObservedReplica], provider: Provider) -> None:
    """Removes what is left of replicas that ended, but for the latest, whose logs may still be asked for."""
    known = Replica.objects.for_org(deployment.org_id).filter(deployment=deployment).order_by("-id")
    kept = set(known.filter(ended_at=None).values_list("name", flat=True))
    kept |= set(known.exclude(ended_at=None).values_list("name", flat=True)[:KEPT_ENDED])
    for name, replica in observed.items():
        if not replica.alive and name not in kept:
            provider.forget(name)
