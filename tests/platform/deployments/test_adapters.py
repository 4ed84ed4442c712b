"""Adapters beside their base and alone, with a provider that starts nothing: what replicas are told, what each situation is, and what
cannot be done to a base on which adapters stand."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from berth.billing.prices import set_price
from berth.billing.rating import Prices
from berth.catalog.facts import FACTS_FORMAT, AdapterFacts, to_json
from berth.catalog.models import Artefact, ArtefactFile, ModelVersion
from berth.compute.launch import Phase
from berth.compute.providers.fake import FakeProvider
from berth.deployments import rollouts
from berth.deployments.activity import last_request_at
from berth.deployments.models import Deployment, Replica, State
from berth.deployments.proposals import propose
from berth.deployments.services import delete, deploy, pause, resume, update, wake
from berth.deployments.waking import sleep_of
from berth.orgs.models import Organisation
from berth.publishing.routes import build_routes
from berth.web.errors import ApiError, Conflict
from berth_gateway.contract import Route, RouteState
from tests import make
from tests.platform.deployments.conftest import Clock
from tests.platform.deployments.looks import look, row, settle

pytestmark = pytest.mark.django_db


def an_adapter(base: ModelVersion, name: str, engines: tuple[str, ...] = ("llamacpp", "vllm")) -> ModelVersion:
    """As an import of PEFT's files leaves it."""
    version = make.version(make.model(base.org, name), base=base)
    facts = AdapterFacts(FACTS_FORMAT, 4, 8.0, ("q_proj",), "base", 1000, 8, engines)
    artefact = Artefact.objects.create(
        org=base.org, version=version, format="lora", quantization="F32", engines=[], size=1_000_000, facts={},
        adapter=to_json(facts),
    )  # fmt: skip
    for number, file in enumerate(("adapter_config.json", "adapter_model.safetensors")):
        ArtefactFile.objects.create(
            org=base.org, artefact=artefact, name=file, role="adapter", size=10, sha256=f"{number:064x}"
        )
    return version


@pytest.fixture
def org() -> Organisation:
    return make.org()


@pytest.fixture
def base(org: Organisation, provider: FakeProvider, clock: Clock) -> Deployment:
    """Ready."""
    version = make.artefact(make.version(make.model(org, "base"))).version
    return settle(deploy(org, None, version=version, provider=provider), provider, clock, State.READY)


def version_of(deployment: Deployment) -> ModelVersion:
    """Whose files it runs."""
    assert deployment.revision is not None
    return deployment.revision.artefact.version


def stand(base: Deployment, name: str, provider: FakeProvider, clock: Clock) -> Deployment:
    made = deploy(base.org, None, version=an_adapter(version_of(base), name))
    assert made.beside_id == base.pk
    return both(made, base, provider, clock)


def both(adapter: Deployment, base: Deployment, provider: FakeProvider, clock: Clock) -> Deployment:
    settle(base, provider, clock, State.READY)
    return settle(adapter, provider, clock, State.READY)


def living(deployment: Deployment) -> list[Replica]:
    return list(Replica.objects.for_org(deployment.org_id).filter(deployment=deployment, ended_at=None))


def route(deployment: Deployment, clock: Clock) -> Route:
    return next(each for each in build_routes(clock()) if each.deployment_id == str(deployment.pk))


def test_it_costs_no_replica_and_every_replica_loads_it(base: Deployment, provider: FakeProvider, clock: Clock) -> None:
    slug = base.org.slug
    one, two = (stand(base, name, provider, clock) for name in ("one", "two"))
    assert len(living(base)) == 1
    assert not living(one) and not living(two)
    spec = provider.specs[living(base)[0].name]
    assert [(each.name, each.rank, len(each.files)) for each in spec.adapters] == [
        (f"{slug}/one", 4, 2),
        (f"{slug}/two", 4, 2),
    ]
    assert spec.model_alias == f"{slug}/base"

    own, second, first = route(base, clock), route(two, clock), route(one, clock)
    assert (first.adapter, second.adapter, own.adapter, own.carries) == (0, 1, None, True)
    assert (first.name, first.engine_model, first.state) == (f"{slug}/one", f"{slug}/one", RouteState.READY)
    assert [(each.host, each.port) for each in first.replicas] == [(each.host, each.port) for each in own.replicas]
    assert one.revision is not None
    assert (first.revision, first.replicas[0].revision) == (one.revision.number, None)  # metered under its own


def test_a_replica_without_it_gets_none_of_its_requests(base: Deployment, provider: FakeProvider, clock: Clock) -> None:
    made = deploy(base.org, None, version=an_adapter(version_of(base), "one"))
    look(base, provider, clock)  # the new replica begins to load; the old one serves the base
    look(made, provider, clock)
    assert row(made).state == State.STARTING
    assert route(base, clock).state is RouteState.READY
    waiting = route(made, clock)
    assert (waiting.state, waiting.replicas) == (RouteState.LOADING, ())
    both(made, base, provider, clock)
    assert route(made, clock).state is RouteState.READY


def test_one_that_cannot_be_loaded_does_the_base_no_harm(
    base: Deployment, provider: FakeProvider, clock: Clock
) -> None:
    good = version_of(base)
    before = base.revision_id
    made = deploy(base.org, None, version=an_adapter(good, "broken"))
    for _ in range(200):
        look(base, provider, clock)
        for replica in provider.observe_all():
            if replica.alive and replica.phase not in (Phase.READY, Phase.DRAINING):
                provider.fail(replica.name, "adapter_unreadable", "It does not fit.")
            elif replica.alive and replica.phase is Phase.DRAINING:
                provider.advance(replica.name, Phase.STOPPED)
        assert route(base, clock).state is RouteState.READY
        clock.forward(5)
        if row(base).revision_id == before:
            break
    assert row(base).revision_id == before
    settle(base, provider, clock, State.READY)
    look(made, provider, clock)
    now = row(made)
    assert (now.state, now.reason) == (State.FAILED, "adapter_not_loaded")
    assert route(made, clock).state is RouteState.UNAVAILABLE
    resume(made, None)  # tries again
    assert both(made, base, provider, clock).reason == ""


def test_updates_and_rollbacks_of_the_base_carry_it(base: Deployment, provider: FakeProvider, clock: Clock) -> None:
    made = stand(base, "one", provider, clock)
    update(base, None, pins={"slots": 2})
    both(made, base, provider, clock)
    assert [each.name for each in provider.specs[living(base)[0].name].adapters] == [f"{base.org.slug}/one"]
    clock.forward(10_000)
    settle(base, provider, clock, State.READY)  # the rollout is over
    rollouts.roll_back(base, None, number=1)  # which knew of no adapter
    both(made, base, provider, clock)
    spec = provider.specs[living(base)[0].name]
    assert [each.name for each in spec.adapters] == [f"{base.org.slug}/one"]
    first = base.revisions.get(number=1)
    assert spec.slots == first.slots


def test_the_base_is_not_taken_away_under_it(base: Deployment, provider: FakeProvider, clock: Clock) -> None:
    made = stand(base, "one", provider, clock)
    with pytest.raises(Conflict) as refused:
        delete(base, None)
    assert refused.value.code == "adapter.stands_on_it"
    other = make.artefact(make.version(version_of(base).model, number=2)).version
    with pytest.raises(Conflict) as lost:
        update(base, None, version=other)
    assert lost.value.code == "adapter.would_be_lost"
    delete(made, None)
    settle(made, provider, clock, State.DELETED)
    settle(base, provider, clock, State.READY)
    assert provider.specs[living(base)[0].name].adapters == ()
    assert not route(base, clock).carries
    delete(base, None)


def test_it_sleeps_wakes_and_pauses_with_its_base(base: Deployment, provider: FakeProvider, clock: Clock) -> None:
    made = stand(base, "one", provider, clock)
    Deployment.objects.for_org(base.org_id).filter(pk=base.pk).update(sleep_after_seconds=1)
    clock.forward(600)
    settle(base, provider, clock, State.ASLEEP)
    assert route(made, clock).state is RouteState.ASLEEP  # before anybody has looked at the adapter
    settle(made, provider, clock, State.ASLEEP)
    asleep = route(made, clock)
    assert (asleep.state, asleep.asleep_since) == (RouteState.ASLEEP, sleep_of(row(base)))
    Deployment.objects.for_org(base.org_id).filter(pk=base.pk).update(sleep_after_seconds=None)
    assert wake(made, None)
    assert route(made, clock).state is RouteState.LOADING
    both(made, base, provider, clock)
    pause(base, None)
    settle(base, provider, clock, State.PAUSED)
    assert settle(made, provider, clock, State.PAUSED).reason == "base_paused"
    assert route(made, clock).state is RouteState.PAUSED
    resume(base, None)
    both(made, base, provider, clock)
    pause(made, None)
    assert route(made, clock).state is RouteState.PAUSED
    assert route(base, clock).state is RouteState.READY


def test_requests_for_it_keep_the_base_awake(
    base: Deployment, provider: FakeProvider, clock: Clock, valkey: Any
) -> None:
    made = stand(base, "one", provider, clock)
    key, _ = make.key(make.member(base.org, "owner"))
    assert last_request_at(base, clock()) is None
    event = make.usage_event(made, key)
    assert last_request_at(base, clock()) == event.accepted_at.timestamp() + event.duration_ms / 1000


def test_alone_it_runs_on_its_bases_files(org: Organisation, provider: FakeProvider, clock: Clock) -> None:
    version = make.artefact(make.version(make.model(org, "base"))).version
    made = deploy(org, None, version=an_adapter(version, "one"))  # no base runs
    assert made.beside_id is None
    settle(made, provider, clock, State.READY)
    spec = provider.specs[living(made)[0].name]
    assert (spec.model_alias, [each.name for each in spec.adapters]) == (f"{org.slug}/one:base", [f"{org.slug}/one"])
    assert made.revision is not None
    assert made.revision.artefact.version_id == version.pk
    own = route(made, clock)
    assert (own.adapter, own.engine_model) == (0, f"{org.slug}/one")
    # Another of the same base stands beside it.
    other = stand(row(made), "two", provider, clock)
    assert [route(each, clock).adapter for each in (made, other)] == [0, 1]


def test_where_it_is_put(base: Deployment, provider: FakeProvider) -> None:
    version = an_adapter(version_of(base), "one")
    apart = deploy(base.org, None, version=version, beside="")
    assert apart.beside_id is None
    pinned = deploy(base.org, None, version=version, name="pinned", pins={"engine": "llamacpp"})
    assert pinned.beside_id is None
    beside = deploy(base.org, None, version=version, beside="base")
    assert (beside.beside_id, beside.name) == (base.pk, "one-2")
    with pytest.raises(ApiError) as wrong:
        deploy(base.org, None, version=version, beside="nobody")
    assert wrong.value.code == "adapter.no_such_base"
    with pytest.raises(ApiError) as whole:
        deploy(base.org, None, version=version_of(base), beside="base")
    assert whole.value.code == "adapter.none"
    with pytest.raises(ApiError) as own:
        update(beside, None, replicas=2)
    assert (own.value.code, own.value.field) == ("adapter.follows_base", "replicas")
    update(beside, None, limits={"rpm": 5}, hold_seconds=7)
    assert row(beside).hold_seconds == 7


def test_the_plan_says_where_it_would_be_put_and_what_it_costs(base: Deployment, provider: FakeProvider) -> None:
    version = an_adapter(version_of(base), "one")
    beside = propose(base.org, model="one")
    assert (beside["fits"], beside["beside"], beside["plan_id"]) == (True, "base", None)
    assert (beside["choice"]["price_per_hour"], beside["choice"]["reasons"][0]["code"]) == ("0", "beside_base")
    apart = propose(base.org, model="one", beside="", provider=provider)
    assert apart["beside"] is None
    made = deploy(base.org, None, version=version, beside="", plan_id=apart["plan_id"])
    assert made.revision is not None and made.revision.artefact.version_id == version.base_id


def test_an_engine_that_does_not_load_it_is_not_chosen(base: Deployment, provider: FakeProvider) -> None:
    version = an_adapter(version_of(base), "one", engines=("vllm",))
    with pytest.raises(ApiError) as refused:
        deploy(base.org, None, version=version)  # the base runs on llama.cpp, and there is nothing that vLLM could load
    assert refused.value.code == "no_plan"


def test_it_has_a_price_of_its_own(base: Deployment, provider: FakeProvider, clock: Clock) -> None:
    made = stand(base, "one", provider, clock)
    dear = Prices(Decimal("0.000003"), Decimal("0.000001"), Decimal("0.000009"))
    set_price(dear, org=base.org, deployment="one", valid_from=clock() + timedelta(hours=1), now=clock())
    clock.forward(7200)
    assert route(made, clock).prices[0].output == 9_000_000
    assert route(base, clock).prices[0].output != 9_000_000


@pytest.mark.threat("M8")
def test_another_organisations_base_is_no_base(base: Deployment, provider: FakeProvider) -> None:
    stranger = make.org()
    foreign = make.version(make.model(stranger, "theirs"))
    version = an_adapter(foreign, "one")
    with pytest.raises(ApiError):
        deploy(stranger, None, version=version, beside=base.name)
