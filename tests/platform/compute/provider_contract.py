"""What every provider must do. Subclasses give the fixtures `provider` and `spec`, and say how to wait."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import msgspec

from berth.compute.launch import LaunchSpec, ModelFile, Phase
from berth.compute.provider import ObservedReplica, Provider

SECRET = "the-secret-of-this-replica"
TIMED = [Phase.VERIFYING, Phase.LOADING, Phase.WARMING, Phase.READY]


def one(provider: Provider, spec: LaunchSpec) -> ObservedReplica:
    """What the provider says of the replica of `spec`."""
    [replica] = [seen for seen in provider.observe(spec.deployment_id) if seen.name == spec.replica]
    return replica


class ProviderContract(abc.ABC):
    @abc.abstractmethod
    def until(self, provider: Provider, holds: Callable[[], Any], what: str) -> Any:
        """Waits, or turns the script, until `holds` is true."""

    @abc.abstractmethod
    def kill(self, provider: Provider, replica: ObservedReplica) -> None:
        """Takes the replica's process away."""

    def ready(self, provider: Provider, spec: LaunchSpec) -> ObservedReplica:
        provider.start(spec, SECRET)
        self.until(provider, lambda: one(provider, spec).phase in (Phase.READY, Phase.FAILED), "it gets ready")
        replica = one(provider, spec)
        assert replica.ready, replica
        return replica

    def test_offers_say_what_fits(self, provider: Provider) -> None:
        offers = provider.offers()
        assert len({offer.key for offer in offers}) == len(offers) >= 1
        for offer in offers:
            assert offer.cores >= 1
            assert 0 < offer.free_memory_bytes <= offer.memory_bytes
            assert offer.free
            assert offer.memory_bandwidth is None or offer.memory_bandwidth > 10**8

    def test_a_replica_is_observable_once_started_and_gets_ready(self, provider: Provider, spec: LaunchSpec) -> None:
        assert provider.observe(spec.deployment_id) == []
        provider.start(spec, SECRET)
        begun = one(provider, spec)
        assert begun.alive
        assert not begun.phase.final
        replica = self.ready(provider, spec)
        assert (replica.org_id, replica.deployment_id, replica.revision) == ("org-1", "dep-1", 3)
        assert replica.host and replica.port
        assert [timing.phase for timing in replica.phases] == TIMED
        assert provider.capacity().replicas == 1

    def test_starting_what_runs_changes_nothing(self, provider: Provider, spec: LaunchSpec) -> None:
        before = self.ready(provider, spec)
        provider.start(spec, SECRET)
        after = one(provider, spec)
        assert (after.port, after.phases) == (before.port, before.phases)

    def test_a_deployment_sees_its_own_replicas_only(self, provider: Provider, spec: LaunchSpec) -> None:
        other = msgspec.structs.replace(spec, replica="dep-2-1-0-0", deployment_id="dep-2")
        provider.start(spec, SECRET)
        provider.start(other, SECRET)
        assert [seen.name for seen in provider.observe("dep-1")] == [spec.replica]
        assert [seen.name for seen in provider.observe("dep-2")] == [other.replica]
        assert [seen.name for seen in provider.observe_all()] == sorted([spec.replica, other.replica])
        assert provider.observe("dep-3") == []

    def test_stopping_ends_it_and_may_be_repeated(self, provider: Provider, spec: LaunchSpec) -> None:
        self.ready(provider, spec)
        provider.stop(spec.replica, drain_seconds=5)
        self.until(provider, lambda: not one(provider, spec).alive, "it has ended")
        assert one(provider, spec).phase is Phase.STOPPED
        assert not one(provider, spec).ready
        provider.stop(spec.replica, drain_seconds=5)
        provider.stop("dep-1-9-9-9", drain_seconds=0)
        assert provider.capacity().replicas == 0

    def test_an_ended_replica_can_be_started_anew(self, provider: Provider, spec: LaunchSpec) -> None:
        self.ready(provider, spec)
        provider.stop(spec.replica, drain_seconds=0)
        self.until(provider, lambda: not one(provider, spec).alive, "it has ended")
        provider.start(spec, SECRET)
        assert one(provider, spec).alive
        self.ready(provider, spec)

    def test_a_lost_process_is_a_failure(self, provider: Provider, spec: LaunchSpec) -> None:
        self.kill(provider, self.ready(provider, spec))
        self.until(provider, lambda: not one(provider, spec).alive, "it is gone")
        lost = one(provider, spec)
        assert (lost.phase, lost.reason) == (Phase.FAILED, "agent_lost")
        assert lost.message

    def test_renewing_changes_nothing_that_can_be_seen(self, provider: Provider, spec: LaunchSpec) -> None:
        provider.renew(spec, SECRET)
        assert provider.observe_all() == [], "who is not known is not started"
        ready = self.ready(provider, spec)
        provider.renew(spec, SECRET)
        again = one(provider, spec)
        assert (again.alive, again.phase, again.port) == (True, ready.phase, ready.port)

    def test_forget_removes_what_has_ended_and_nothing_else(self, provider: Provider, spec: LaunchSpec) -> None:
        self.ready(provider, spec)
        provider.forget(spec.replica)
        assert one(provider, spec).ready
        provider.stop(spec.replica, drain_seconds=0)
        self.until(provider, lambda: not one(provider, spec).alive, "it has ended")
        provider.forget(spec.replica)
        assert provider.observe_all() == []
        assert provider.logs(spec.replica).lines == ()
        provider.forget(spec.replica)

    def test_logs_come_in_pages(self, provider: Provider, spec: LaunchSpec) -> None:
        self.ready(provider, spec)
        everything = provider.logs(spec.replica, limit=1000)
        assert len(everything.lines) > 2
        assert not everything.more
        after, paged = 0, []
        while True:
            page = provider.logs(spec.replica, after, limit=2)
            assert len(page.lines) <= 2
            paged += page.lines
            if not page.more:
                break
            assert page.next_after > after
            after = page.next_after
        assert tuple(paged[: len(everything.lines)]) == everything.lines
        end = provider.logs(spec.replica, paged[-1].number)
        assert (end.lines, end.next_after, end.more) == ((), paged[-1].number, False)
        assert provider.logs("dep-1-9-9-9").lines == ()


def a_spec(file: ModelFile, **changes: Any) -> LaunchSpec:
    base = LaunchSpec(
        format=1,
        replica="dep-1-3-0-0",
        org_id="org-1",
        deployment_id="dep-1",
        revision=3,
        engine="llamacpp",
        files=(file,),
        model_alias="org/model",
        context_length=512,
        slots=1,
        threads=1,
        secret_file="",
        state_dir="",
        drain_seconds=5,
    )
    return msgspec.structs.replace(base, **changes)
