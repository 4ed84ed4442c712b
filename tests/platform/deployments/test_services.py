"""What people do with deployments."""

from __future__ import annotations

from typing import Any

import pytest

from berth.catalog.models import ModelVersion
from berth.compute.providers.fake import FakeProvider
from berth.deployments.models import Deployment, Event, Revision, State
from berth.deployments.planning import NoPlan
from berth.deployments.proposals import plan_for
from berth.deployments.services import delete, deploy, pause, resume, update
from berth.orgs.models import Organisation
from berth.outbox.models import Change
from berth.web.errors import ApiError, Conflict, NotFound
from tests import make

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("provider")]


@pytest.fixture
def org() -> Organisation:
    made = make.org()
    make.artefact(make.version(make.model(made, "tiny")))
    return made


def test_deploy_makes_the_first_revision_and_tells_everybody(org: Organisation) -> None:
    owner = make.member(org, "owner").user
    deployment = deploy(org, owner, model="tiny", needs={"context_length": 1024}, replicas=2)
    revision = deployment.revision
    assert revision is not None
    assert (deployment.name, deployment.state, deployment.created_by) == ("tiny", State.QUEUED, owner)
    assert (revision.number, revision.context_length, revision.slots, revision.replicas) == (1, 1024, 4, 2)
    assert revision.memory == revision.plan["choice"]["memory"]["total"]
    assert (revision.needs["context_length"], revision.plan["pins"]["tier"]) == (1024, None)
    assert Change.objects.filter(topic="routes").exists()
    kinds = set(Event.objects.for_org(org).values_list("kind", flat=True))
    assert kinds == {"deployed", "revision_created"}


def test_names(org: Organisation) -> None:
    assert [deploy(org, None, model="tiny").name for _ in range(3)] == ["tiny", "tiny-2", "tiny-3"]
    with pytest.raises(Conflict) as taken:
        deploy(org, None, model="tiny", name="tiny")
    assert taken.value.code == "name_taken"
    assert deploy(org, None, model="tiny", name="my.bot_1").name == "my.bot_1"


@pytest.mark.threat("M9")
@pytest.mark.parametrize(
    "name", ["--trust-remote-code", "$(id)", "a\nb", "a\n", "", "LD_PRELOAD", "../x", "a/b", "x" * 64]
)
def test_hostile_names(org: Organisation, name: str) -> None:
    with pytest.raises(ApiError) as refused:
        deploy(org, None, model="tiny", name=name)
    assert (refused.value.code, refused.value.status) == ("invalid_name", 422)
    assert not Deployment.objects.for_org(org).exists()


def test_a_name_is_free_again_when_its_deployment_is_gone(org: Organisation) -> None:
    gone = deploy(org, None, model="tiny", name="bot")
    delete(gone, None)
    with pytest.raises(Conflict):
        deploy(org, None, model="tiny", name="bot")
    Deployment.objects.for_org(org).filter(pk=gone.pk).update(state=State.DELETED)
    assert deploy(org, None, model="tiny", name="bot").pk != gone.pk


def test_what_does_not_fit_is_not_deployed_and_the_way_out_is_told(org: Organisation) -> None:
    with pytest.raises(NoPlan) as nothing:
        deploy(org, None, model="tiny", needs={"tokens_per_second": 90_000})
    assert nothing.value.params["rejected"][0]["code"] == "too_slow"
    assert "less_speed" in [change["code"] for change in nothing.value.params["changes"]]
    assert not Deployment.objects.for_org(org).exists()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"needs": {"context_length": 1}}, "needs.context_length"),
        ({"pins": {"engine": "--x"}}, "pins.engine"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": 17}, "replicas"),
    ],
)
def test_bad_wishes_name_their_field(org: Organisation, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as bad:
        deploy(org, None, model="tiny", **fields)
    assert bad.value.field == field


def test_only_models_of_the_organisation(org: Organisation) -> None:
    foreign = make.version(make.model(make.org(), "theirs"))
    make.artefact(foreign)
    for wanted in ({"model": "theirs"}, {"version": foreign}, {"model": "tiny", "version": 2}, {}):
        with pytest.raises(NotFound):
            deploy(org, None, **wanted)


def test_what_was_deleted_and_is_only_history_is_not_deployed(org: Organisation) -> None:
    """Its files are gone; the newest that is there is the one before it."""
    first = ModelVersion.objects.for_org(org).get()
    second = make.version(first.model, 2)
    make.artefact(second)
    ModelVersion.objects.for_org(org).filter(pk=second.pk).update(deleted_at=make.NOON)
    with pytest.raises(NotFound):
        deploy(org, None, model="tiny", version=2)
    with pytest.raises(NotFound):
        deploy(org, None, version=second)
    made = deploy(org, None, model="tiny")
    assert made.revision is not None
    assert made.revision.version == first
    with pytest.raises(NotFound):
        update(made, None, version=2)


def test_what_is_deleted_while_it_is_planned_is_not_deployed(
    org: Organisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(owner: Organisation, choice: object) -> None:
        ModelVersion.objects.for_org(org).update(deleted_at=make.NOON)

    monkeypatch.setattr("berth.deployments.services.check_quota", meanwhile)
    with pytest.raises(NotFound):
        deploy(org, None, model="tiny")
    assert not Deployment.objects.for_org(org).exists()


def test_suspended_organisations_deploy_nothing(org: Organisation) -> None:
    org.suspended_at = make.NOON
    with pytest.raises(Conflict) as refused:
        deploy(org, None, model="tiny")
    assert refused.value.code == "org_suspended"


def test_an_update_keeps_what_is_not_given(org: Organisation) -> None:
    deployment = deploy(org, None, model="tiny", needs={"context_length": 1024}, pins={"slots": 3})
    Deployment.objects.for_org(org).update(failures=4)
    changed = update(deployment, None, replicas=2)
    revision = changed.revision
    assert revision is not None
    assert (revision.number, revision.context_length, revision.slots, revision.replicas) == (2, 1024, 3, 2)
    assert Deployment.objects.for_org(org).get().failures == 0
    free = update(changed, None, pins={}, needs={})
    assert free.revision is not None
    assert (free.revision.slots, free.revision.context_length) == (4, 8192)
    assert Revision.objects.for_org(org).count() == 3


def test_an_update_that_does_not_fit_changes_nothing(org: Organisation) -> None:
    deployment = deploy(org, None, model="tiny")
    with pytest.raises(NoPlan):
        update(deployment, None, needs={"context_length": 9000})
    assert Revision.objects.for_org(org).count() == 1


def test_a_new_version_of_the_model(org: Organisation) -> None:
    deployment = deploy(org, None, model="tiny")
    first = deployment.revision
    assert first is not None
    second = make.version(first.version.model, 2)
    make.artefact(second)
    changed = update(deployment, None, version=2)
    assert changed.revision is not None
    assert changed.revision.version == second


def test_orders_are_idempotent_and_nothing_follows_a_delete(org: Organisation) -> None:
    deployment = deploy(org, None, model="tiny")
    pause(deployment, None)
    events = Event.objects.for_org(org).count()
    assert pause(deployment, None).desired == "paused"
    assert Event.objects.for_org(org).count() == events
    assert resume(deployment, None).desired == "running"
    delete(deployment, None)
    for order in (pause, resume, delete):
        with pytest.raises(NotFound):
            order(deployment, None)


def test_resume_after_failures_forgets_them(org: Organisation) -> None:
    deployment = deploy(org, None, model="tiny")
    Deployment.objects.for_org(org).update(failures=5, state=State.FAILED)
    resume(deployment, None)
    assert Deployment.objects.for_org(org).get().failures == 0
    assert Event.objects.for_org(org).filter(kind="retried").exists()


def test_planning_changes_nothing_and_agrees_with_deploying(org: Organisation, provider: FakeProvider) -> None:
    planned = plan_for(org, model="tiny", replicas=2)
    assert not Deployment.objects.for_org(org).exists()
    deployment = deploy(org, None, model="tiny", replicas=2)
    assert planned.choice is not None
    assert deployment.revision is not None
    assert deployment.revision.memory == planned.choice.memory.total
    provider.unavailable = True
    with pytest.raises(ApiError) as away:
        plan_for(org, model="tiny")
    assert away.value.status == 503
