"""The reconciler on real tables with a scripted provider: leases, crashes in between, orders, updates."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.compute.launch import Phase
from berth.compute.provider import ProviderError, ProviderUnavailable
from berth.compute.providers.fake import FakeProvider
from berth.deployments import lease, sweep
from berth.deployments.launching import memory_limit
from berth.deployments.models import Deployment, Event, Replica, State
from berth.deployments.reconcile import RENEW_AFTER, reconcile
from berth.deployments.secrets import replica_secret
from berth.deployments.services import delete, pause, resume, update
from berth.deployments.world import TAKEN_AWAY
from berth.orgs.tenancy import new_id
from berth.outbox.models import Change
from tests.platform.deployments.conftest import Clock
from tests.platform.deployments.looks import due, look, queued, row, settle

pytestmark = pytest.mark.django_db


def test_from_queued_to_ready(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    look(deployment, provider, clock)
    name = f"{deployment.pk}-1-0-1"
    spec = provider.specs[name]
    assert row(deployment).state == State.STARTING
    assert provider.secrets[name] == replica_secret(name)
    assert spec.model_alias == f"{deployment.org.slug}/{deployment.name}"
    assert (spec.context_length, spec.slots, spec.threads) == (2048, 2, 2)
    assert [file.path.rpartition("/")[2] for file in spec.files] == [file.sha256 for file in spec.files]
    assert spec.memory_limit == memory_limit(400_000_000, 2)
    changes = Change.objects.count()
    provider.ready(name)
    look(deployment, provider, clock)
    replica = Replica.objects.for_org(deployment.org_id).get()
    assert (row(deployment).state, replica.phase, replica.host) == (State.READY, "ready", "127.0.0.1")
    assert replica.port
    assert replica.ready_at == clock()
    assert [timing["phase"] for timing in replica.phases] == ["verifying", "loading", "warming", "ready"]
    assert Change.objects.count() > changes  # gateways are told
    moves = Event.objects.for_org(deployment.org_id).filter(kind="state_changed").order_by("id")
    assert [(event.data["from"], event.data["to"]) for event in moves] == [
        ("queued", "starting"),
        ("starting", "ready"),
    ]


def test_what_changes_nothing_writes_nothing(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    settle(deployment, provider, clock, State.READY)
    before = (Event.objects.for_org(deployment.org_id).count(), Change.objects.count())
    for _ in range(3):
        look(deployment, provider, clock)
    assert (Event.objects.for_org(deployment.org_id).count(), Change.objects.count()) == before


def test_pause_resume_delete(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    settle(deployment, provider, clock, State.READY)
    pause(deployment, None)
    settle(deployment, provider, clock, State.PAUSED)
    assert not any(replica.alive for replica in provider.observe_all())
    assert provider.stops[-1][1] > 0  # what ran could finish
    resume(deployment, None)
    settle(deployment, provider, clock, State.READY)
    delete(deployment, None)
    settle(deployment, provider, clock, State.DELETED)
    assert not any(replica.alive for replica in provider.observe_all())


def test_a_crash_is_seen_by_the_sweep_and_answered(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    settle(deployment, provider, clock, State.READY)
    look(deployment, provider, clock)
    assert sweep.due(clock()) == []
    provider.vanish(f"{deployment.pk}-1-0-1")
    assert sweep.notice(provider, clock()) == [deployment.pk]
    assert sweep.due(clock()) == [deployment.pk]
    reconcile(deployment.pk, provider, clock)
    assert provider.starts[-1] == f"{deployment.pk}-1-0-2"
    first = Replica.objects.for_org(deployment.org_id).get(name=f"{deployment.pk}-1-0-1")
    assert (first.phase, first.reason, first.ended_at) == ("failed", "agent_lost", clock())


def test_nobody_elses_lease_is_taken_and_an_expired_one_is(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    assert lease.claim(deployment.pk, clock()) is not None
    due(deployment)
    assert reconcile(deployment.pk, provider, clock) is None
    assert provider.starts == []
    clock.forward(lease.LEASE.total_seconds() + 1)
    assert sweep.due(clock()) == [deployment.pk]
    assert reconcile(deployment.pk, provider, clock) is not None
    assert len(provider.starts) == 1


class Thief:
    """A provider during whose observation somebody else takes the deployment over."""

    def __init__(self, inner: FakeProvider, deployment: Deployment, clock: Clock) -> None:
        self.inner, self.deployment, self.clock = inner, deployment, clock

    def observe(self, deployment_id: str) -> Any:
        self.clock.forward(lease.LEASE.total_seconds() + 1)
        due(self.deployment)
        reconcile(self.deployment.pk, self.inner, self.clock)
        return self.inner.observe(deployment_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_who_lost_the_lease_writes_nothing_and_starts_nothing(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    events = Event.objects.for_org(deployment.org_id)
    assert reconcile(deployment.pk, Thief(provider, deployment, clock), clock) is None  # type: ignore[arg-type]
    assert provider.starts == [f"{deployment.pk}-1-0-1"]
    assert events.filter(kind="replica_started").count() == 1


def test_a_kick_during_a_look_is_not_lost(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    settle(deployment, provider, clock, State.READY)
    due(deployment)
    held = lease.claim(deployment.pk, clock())
    assert held is not None
    pause(deployment, None)
    assert lease.release(held, clock() + timedelta(hours=1), clock()) == clock()


def test_a_start_that_failed_in_between_is_repeated(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    provider_start = provider.start
    provider.start = lambda *_: (_ for _ in ()).throw(ProviderUnavailable("away"))  # type: ignore[method-assign]
    look(deployment, provider, clock)
    assert Replica.objects.for_org(deployment.org_id).get().ended_at is None
    provider.start = provider_start  # type: ignore[method-assign]
    settle(deployment, provider, clock, State.READY)
    assert provider.starts == [f"{deployment.pk}-1-0-1"]


def test_a_provider_that_is_away_changes_nothing_and_is_named(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    settle(deployment, provider, clock, State.READY)
    provider.unavailable = True
    due(deployment)
    again = reconcile(deployment.pk, provider, clock)
    assert again is not None
    assert again > clock()
    assert (row(deployment).state, row(deployment).reason) == (State.READY, "provider_unavailable")
    provider.unavailable = False
    look(deployment, provider, clock)
    assert (row(deployment).state, row(deployment).reason) == (State.READY, "")


def test_a_start_that_is_refused_counts_as_a_failure(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    provider.start = lambda *_: (_ for _ in ()).throw(ProviderError("The spec is not right."))  # type: ignore[method-assign]
    for _ in range(40):
        look(deployment, provider, clock)
        clock.forward(2)
    failed = row(deployment)
    assert (failed.state, failed.reason) == (State.FAILED, "crash_loop")
    assert "The spec is not right." in failed.message
    provider.start = FakeProvider.start.__get__(provider)  # type: ignore[method-assign]
    resume(deployment, None)
    settle(deployment, provider, clock, State.READY)


def test_a_change_of_replicas_alone_restarts_nobody(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    settle(deployment, provider, clock, State.READY)
    before = row(deployment).revision
    assert before is not None
    before.pk, before.number, before.replicas = new_id(), 2, 2
    before._state.adding = True
    before.save()
    Deployment.objects.for_org(deployment.org_id).filter(pk=deployment.pk).update(revision=before)
    settle(deployment, provider, clock, State.READY)
    assert provider.starts == [f"{deployment.pk}-1-0-1", f"{deployment.pk}-2-1-1"]
    assert provider.stops == []


@given(
    events=st.lists(
        st.sampled_from(
            ["look", "twice", "lost lease", "vanish", "fail", "ready", "pause", "resume", "wait", "away", "full"]
        ),
        max_size=20,
    )
)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_any_sequence_of_accidents_ends_well(
    provider: FakeProvider, clock: Clock, monkeypatch: pytest.MonkeyPatch, events: list[str]
) -> None:
    deployment = queued()
    for event in events:
        accident(event, deployment, provider, clock)
        alive = [each for each in provider.observe(str(deployment.pk)) if each.alive]
        assert len(alive) <= 2
        clock.forward(0.7)
    provider.unavailable = provider.full = False
    resume(deployment, None)
    Deployment.objects.for_org(deployment.org_id).filter(pk=deployment.pk).update(failures=0)
    clock.forward(30)
    settle(deployment, provider, clock, State.READY)
    alive = [each.name for each in provider.observe(str(deployment.pk)) if each.alive]
    assert len(alive) == 1
    assert len(set(provider.starts)) == len(provider.starts)  # no name was ever started twice
    delete(deployment, None)
    settle(deployment, provider, clock, State.DELETED)


def accident(event: str, deployment: Deployment, provider: FakeProvider, clock: Clock) -> None:
    alive = [each for each in provider._replicas.values() if each.alive and each.deployment_id == str(deployment.pk)]
    match event:
        case "lost lease":
            due(deployment)
            lease.claim(deployment.pk, clock())
            clock.forward(lease.LEASE.total_seconds() + 1)
        case "vanish" if alive:
            provider.vanish(alive[0].name)
        case "fail" if alive:
            provider.fail(alive[0].name, "engine_exited")
        case "ready" if alive and alive[0].phase is not Phase.DRAINING:
            provider.ready(alive[0].name)
        case "pause":
            pause(deployment, None)
        case "resume":
            resume(deployment, None)
        case "wait":
            clock.forward(20)
        case "full":
            provider.full = not provider.full
        case "away":
            provider.unavailable = True
            look(deployment, provider, clock)
            provider.unavailable = False
    for _ in range(2 if event == "twice" else 1):
        look(deployment, provider, clock)


def test_updates_overlap(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    settle(deployment, provider, clock, State.READY)
    update(deployment, None, needs={"context_length": 512, "concurrency": 1}, provider=provider)
    look(deployment, provider, clock)
    assert row(deployment).state == State.UPDATING
    assert len([each for each in provider.observe_all() if each.alive]) == 2
    settle(deployment, provider, clock, State.READY)
    alive = [each.name for each in provider.observe_all() if each.alive]
    assert alive == [f"{deployment.pk}-2-0-1"]


@pytest.mark.parametrize("reason", sorted(TAKEN_AWAY))
def test_what_the_cluster_takes_away_is_started_elsewhere_at_once_and_is_no_failure(
    provider: FakeProvider, clock: Clock, reason: str
) -> None:
    deployment = queued()
    settle(deployment, provider, clock, State.READY)
    for _ in range(7):  # more than make a crash loop
        (alive,) = [each.name for each in provider.observe_all() if each.alive]
        provider.fail(alive, reason)
        look(deployment, provider, clock)
        look(deployment, provider, clock)
        assert row(deployment).failures == 0
        assert [each.name for each in provider.observe_all() if each.alive] not in ([], [alive])
        settle(deployment, provider, clock, State.READY)
    ended = Replica.objects.for_org(deployment.org_id).filter(phase="failed", reason=reason)
    assert ended.count() == 7, "people still see what happened"
    # What is its own fault still counts, from the first one on.
    (alive,) = [each.name for each in provider.observe_all() if each.alive]
    provider.fail(alive, "out_of_memory")
    look(deployment, provider, clock)
    assert row(deployment).failures == 1


def test_grants_are_renewed_for_whoever_still_waits_and_for_nobody_else(provider: FakeProvider, clock: Clock) -> None:
    deployment = queued()
    look(deployment, provider, clock)
    (name,) = provider.starts
    look(deployment, provider, clock)
    assert provider.renewals == []
    for times in (1, 2):
        clock.forward(RENEW_AFTER.total_seconds() + 1)
        provider.advance(name, Phase.VERIFYING)  # it is heard of
        look(deployment, provider, clock)
        look(deployment, provider, clock)
        assert provider.renewals == [name] * times, "once in a while"
    provider.ready(name)
    look(deployment, provider, clock)
    clock.forward(2 * RENEW_AFTER.total_seconds())
    provider.ready(name)
    look(deployment, provider, clock)
    assert provider.renewals == [name] * 2, "one that is ready has its files"
    assert provider.starts == [name]
