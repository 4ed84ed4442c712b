"""Another number of replicas changes nothing else: not the files, not the engine, and no replica is restarted. What is better is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from django.test import Client

from berth.catalog.facts import to_json
from berth.catalog.models import Artefact, ModelVersion
from berth.compute.launch import Phase
from berth.compute.providers.fake import FakeProvider
from berth.deployments import better, rollouts
from berth.deployments.models import Deployment, Event, Preparation, Revision, Rollout, State, Status
from berth.deployments.planning import NoPlan
from berth.deployments.preparations import is_placeholder
from berth.deployments.services import deploy, update
from berth.orgs.models import Organisation
from berth.web.errors import Conflict
from tests import make
from tests.platform.deployments.conftest import Clock
from tests.platform.deployments.looks import look, row, settle

pytestmark = pytest.mark.django_db


@pytest.fixture
def org() -> Organisation:
    return make.org(slug="acme")


@pytest.fixture
def version(org: Organisation) -> ModelVersion:
    made = make.version(make.model(org, "tiny"))
    make.artefact(made)
    return made


@pytest.fixture
def deployment(version: ModelVersion, provider: FakeProvider, clock: Clock) -> Deployment:
    made = deploy(version.org, None, model="tiny", name="bot", needs={"concurrency": 1, "context_length": 512})
    return settle(made, provider, clock, State.READY)


def finer(version: ModelVersion) -> Artefact:
    """Files of more bits, which every plan prefers where they fit."""
    size = int(make.FACTS.parameters * 8.5 / 8)
    facts = to_json(make.FILE_FACTS) | {"quantization": "Q8_0", "tensor_bytes": size, "token_bytes": size}
    return make.artefact(version, quantization="Q8_0", facts=facts, size=size)


def wanted(deployment: Deployment) -> Revision:
    revision = row(deployment).revision
    assert revision is not None
    return revision


def alive(provider: FakeProvider, deployment: Deployment) -> list[str]:
    seen = [each for each in provider.observe(str(deployment.pk)) if each.alive]
    return [each.name.removeprefix(f"{deployment.pk}-") for each in seen]


def go(deployment: Deployment, provider: FakeProvider, clock: Clock) -> None:
    for _ in range(8):
        look(deployment, provider, clock)
        for each in provider.observe(str(deployment.pk)):
            if each.alive and each.phase is Phase.DRAINING:
                provider.advance(each.name, Phase.STOPPED)
            elif each.alive:
                provider.ready(each.name)
        clock.forward(0.6)


def events(deployment: Deployment, kind: str) -> list[dict[str, Any]]:
    rows = Event.objects.for_org(deployment.org_id).filter(deployment=deployment, kind=kind)
    return list(rows.order_by("id").values_list("data", flat=True))


def test_more_replicas_have_the_files_of_those_that_run(
    deployment: Deployment, version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    before = wanted(deployment)
    finer(version)
    update(row(deployment), None, replicas=3)
    after = wanted(deployment)
    assert (after.number, after.replicas) == (2, 3)
    assert rollouts.alike(after, before)
    assert (after.needs, after.plan["pins"]) == (before.needs, before.plan["pins"])
    assert after.plan["choice"]["replicas"] == 3
    assert after.plan["rejected"] == before.plan["rejected"]
    assert not Rollout.objects.for_org(version.org_id).filter(revision=after).exists()
    go(deployment, provider, clock)
    assert sorted(alive(provider, deployment)) == ["1-0-1", "2-1-1", "2-2-1"]
    assert events(deployment, "better_plan")[0]["quantization"] == "Q8_0"


def test_fewer_replicas_need_no_plan(
    deployment: Deployment, version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    """Also where nothing can be planned: the provider is away, or what runs would not be chosen any more."""
    update(row(deployment), None, replicas=2)
    go(deployment, provider, clock)
    finer(version)
    provider.unavailable = True
    update(row(deployment), None, replicas=1)
    provider.unavailable = False
    go(deployment, provider, clock)
    assert len(alive(provider, deployment)) == 1
    assert {each.rpartition("-")[0].partition("-")[0] for each in alive(provider, deployment)} <= {"1", "2"}
    assert wanted(deployment).artefact.quantization == "Q4_1"


def test_the_price_is_of_all_replicas(version: ModelVersion, provider: FakeProvider, clock: Clock) -> None:
    made = deploy(version.org, None, model="tiny", name="bot", replicas=2)
    assert made.revision is not None
    made.revision.plan["choice"]["price_per_hour"] = "0.60"
    made.revision.save()
    update(row(made), None, replicas=3)
    assert wanted(made).plan["choice"]["price_per_hour"] == "0.90"


def test_the_same_number_changes_nothing(deployment: Deployment) -> None:
    Deployment.objects.for_org(deployment.org_id).update(failures=3)
    update(row(deployment), None, replicas=1)
    assert wanted(deployment).number == 1
    assert row(deployment).failures == 0


def test_bounds_make_no_revision_and_restart_nobody(
    deployment: Deployment, version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    finer(version)
    update(row(deployment), None, min_replicas=2, max_replicas=4)
    go(deployment, provider, clock)
    assert wanted(deployment).number == 1
    assert sorted(alive(provider, deployment)) == ["1-0-1", "1-1-1"]


def test_what_does_not_fit_any_more_is_planned_anew_and_says_so(
    deployment: Deployment, version: ModelVersion, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's engine reads other files now; only those fit."""
    Artefact.objects.for_org(version.org_id).update(engines=[])
    finer(version)
    update(row(deployment), None, replicas=2)
    after = wanted(deployment)
    assert (after.artefact.quantization, after.replicas) == ("Q8_0", 2)
    assert after.reason.startswith("Planned anew: ")
    assert events(deployment, "planned_anew")[0]["reason"] == "not_offered"
    assert Rollout.objects.for_org(version.org_id).get(revision=after).status == Status.PROGRESSING


def test_where_nothing_fits_any_more_nothing_is_changed(deployment: Deployment, version: ModelVersion) -> None:
    Artefact.objects.for_org(version.org_id).update(engines=[])
    with pytest.raises(NoPlan):
        update(row(deployment), None, replicas=2)
    assert wanted(deployment).number == 1


def test_what_is_being_prepared_goes_on_and_has_as_many(
    version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    half = 2 * make.FACTS.parameters
    facts = to_json(make.FILE_FACTS) | {"quantization": "F16", "tensor_bytes": half, "token_bytes": half}
    Artefact.objects.for_org(version.org_id).update(quantization="F16", facts=facts, size=half)
    needs = {"concurrency": 1, "context_length": 2048, "tokens_per_second": 60}
    made = deploy(version.org, None, model="tiny", needs=needs)
    look(made, provider, clock)
    conversion = Preparation.objects.for_org(version.org_id).get().conversion
    assert conversion is not None
    update(row(made), None, replicas=2)
    open_one = Preparation.objects.for_org(version.org_id).get()
    assert (open_one.state, open_one.replicas, open_one.conversion) == ("open", 2, conversion)
    assert (wanted(made).number, wanted(made).replicas) == (2, 2)
    assert is_placeholder(wanted(made))
    assert not Rollout.objects.for_org(version.org_id).exists()


def test_two_changes_at_once_do_not_undo_each_other(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second was planned for what the first has changed meanwhile."""
    mine = row(deployment)
    planned = better.differs

    def meanwhile(before: Revision, plan: Any) -> bool:
        monkeypatch.setattr(better, "differs", planned)
        update(row(deployment), None, needs={"concurrency": 2})
        return planned(before, plan)

    monkeypatch.setattr(better, "differs", meanwhile)
    with pytest.raises(Conflict) as both:
        update(mine, None, replicas=2)
    assert (both.value.code, both.value.status) == ("changed_meanwhile", 409)
    assert wanted(deployment).needs["concurrency"] == 2


# What would be better


def test_a_better_plan_is_told_and_taken_with_one_press(
    deployment: Deployment, version: ModelVersion, provider: FakeProvider, client: Client
) -> None:
    client.force_login(make.member(version.org, "owner").user)
    url = "/api/v1/orgs/acme/deployments/bot"
    assert client.get(f"{url}/plan").json() == {
        "better": False, "differences": [], "why": None, "plan": None, "plan_id": None,
    }  # fmt: skip
    finer(version)
    told = client.get(f"{url}/plan").json()
    assert told["better"] is True
    assert told["differences"] == [{"field": "quantization", "before": "Q4_1", "after": "Q8_0"}]
    assert told["why"]["code"] == "lower_quality"
    assert told["plan"]["choice"]["artefact"]["quantization"] == "Q8_0"
    taken = client.patch(url, {"plan_id": told["plan_id"]}, "application/json")
    assert taken.status_code == 200
    assert taken.json()["revision"]["quantization"] == "Q8_0"
    assert client.get(f"{url}/plan").json()["better"] is False


def test_viewers_are_not_asked(deployment: Deployment, version: ModelVersion, client: Client) -> None:
    client.force_login(make.member(version.org, "viewer").user)
    assert client.get("/api/v1/orgs/acme/deployments/bot/plan").status_code == 403


def test_what_it_was_rolled_back_from_is_not_offered_again(
    deployment: Deployment, version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    finer(version)
    update(row(deployment), None, pins={})
    assert wanted(deployment).artefact.quantization == "Q8_0"
    rollouts.roll_back(row(deployment), None)
    assert wanted(deployment).artefact.quantization == "Q4_1"
    assert better.better_plan(row(deployment))["better"] is False


def test_everything_that_runs_is_pinned_for_the_check() -> None:
    from berth.deployments.resizing import as_it_runs
    from berth.planner.needs import Pins

    revision = Revision(artefact_id="a", engine="e", tier="t", context_length=512, slots=2)
    pinned = {name for name, value in msgspec.to_builtins(as_it_runs(revision)).items() if value is not None}
    assert pinned == set(Pins.__struct_fields__) - {"quantization"}
