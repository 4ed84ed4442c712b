"""Planned against measured is stored for each deployment, and teaches plans on the same hardware; numbers only."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from berth.compute.provider import ProviderUnavailable
from berth.compute.providers.fake import FakeProvider
from berth.deployments import tasks
from berth.deployments.checks import check_plans
from berth.deployments.corrections import REMEMBERED, factors, learnt
from berth.deployments.measured import FIRST, SPEED, measure
from berth.deployments.models import Deployment, PlanCheck
from berth.deployments.proposals import plan_for
from berth.deployments.services import deploy
from berth.keys.models import ApiKey
from berth.metering.selectors import Served
from berth.orgs.models import Organisation
from berth.planner.learning import TPOT, TTFT
from tests import make

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("provider")]
KEY = ("llamacpp", "Q4_1", "cpu-fake", TPOT)


def served(at: float, *, speed: float = 50.0, first: float = 200.0, tokens: int = 51, **fields: Any) -> Served:
    duration = first + 1000 * (tokens - 1) / speed
    values = {
        "accepted_at": at, "duration_ms": duration, "first_token_ms": first, "counted": True, "prompt_tokens": 100,
        "cached_tokens": 40, "completion_tokens": tokens,
    }  # fmt: skip
    return Served(**values | fields)


def test_speed_is_the_median_over_what_the_engine_counted_itself() -> None:
    good = [served(10.0 * number, speed=speed) for number, speed in enumerate((40.0, 50.0, 900.0))]
    left_out = [
        served(100, speed=1, counted=False),
        served(110, speed=1, tokens=7),
        served(120, speed=1, first_token_ms=None),
        served(130, duration_ms=200.0),
    ]
    speed, first = measure([*good, *left_out], 1)
    assert (speed.metric, round(speed.value, 6), speed.count, speed.load) == (SPEED, 50.0, 3, 1.0)
    assert (first.metric, first.value, first.fresh_tokens) == (FIRST, 200.0, 60)
    assert measure(left_out[:3], 1) == []


def test_load_is_shared_by_replicas() -> None:
    together = [served(0.0) for _ in range(4)]
    assert [measure(together, replicas)[0].load for replicas in (1, 2, 8)] == [4.0, 2.0, 1.0]


class World:
    def __init__(self) -> None:
        self.member = make.member(make.org(), "owner")
        self.key: ApiKey = make.key(self.member)[0]
        make.artefact(make.version(make.model(self.org, "tiny")))
        self.deployment = deploy(self.org, None, model="tiny", needs={"concurrency": 1})

    @property
    def org(self) -> Organisation:
        return self.member.org

    def serve(self, count: int, *, speed: float = 100.0, first: float = 300.0, tokens: int = 101, **more: Any) -> None:
        for number in range(count):
            values = {
                "accepted_at": make.NOON + timedelta(minutes=number), "stream": True, "first_token_ms": first,
                "duration_ms": first + 1000 * (tokens - 1) / speed, "completion_tokens": tokens, "prompt_tokens": 512,
            }  # fmt: skip
            make.usage_event(self.deployment, self.key, **values | more)


@pytest.fixture
def world() -> Iterator[World]:
    yield World()


def now() -> Any:
    return make.NOON + timedelta(hours=6)


def check(provider: FakeProvider) -> dict[str, PlanCheck]:
    check_plans(provider, now())
    rows = PlanCheck.objects.across_orgs("whatever the check has written").order_by("id")
    return {row.metric: row for row in rows}


def planned_speed(org: Organisation) -> tuple[float, list[str]]:
    choice = plan_for(org, model="tiny", needs={"concurrency": 1}).choice
    assert choice is not None and choice.predicted.tokens_per_second is not None
    return choice.predicted.tokens_per_second.value, [each.code for each in choice.reasons]


def test_planned_is_stored_beside_measured_once_however_often_it_is_looked(
    world: World, provider: FakeProvider
) -> None:
    world.serve(30, speed=80.0)
    world.serve(1, speed=1.0, outcome="client_closed")
    world.serve(1, speed=1.0, counted_by="estimate")
    world.serve(1, speed=1.0, stream=False)
    first = check(provider)
    again = check(provider)
    assert {metric: row.pk for metric, row in first.items()} == {metric: row.pk for metric, row in again.items()}
    row = again[SPEED]
    revision = world.deployment.revision
    assert revision is not None
    assert row.planned == revision.plan["choice"]["predicted"]["tokens_per_second"]["value"]
    assert (round(row.measured, 6), row.count, row.org_id, row.deployment_id) == (
        80.0, 30, world.org.pk, world.deployment.pk,
    )  # fmt: skip
    assert row.expected is not None and row.expected > 0
    assert (row.window_start, row.window_end) == (make.NOON, make.NOON + timedelta(minutes=29))
    assert again[FIRST].measured == 300.0


def test_measurements_teach_plans_on_the_same_hardware_and_can_be_set_aside(
    world: World, provider: FakeProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    before, _ = planned_speed(world.org)
    world.serve(30, speed=before / 1.4)
    check(provider)
    PlanCheck.objects.across_orgs("the window is in the past").update(window_end=now())
    call_command("planner_corrections", "--list")
    assert "llamacpp/Q4_1/cpu-fake/tpot" in capsys.readouterr().out
    assert learnt(now())[KEY].deployments == 1
    after, reasons = planned_speed(world.org)
    assert before / 1.5 < after < before
    assert "speed_corrected" in reasons

    name = "/".join(KEY)
    call_command("planner_corrections", "--ignore", name)
    assert planned_speed(world.org)[0] == before
    call_command("planner_corrections", "--list")
    assert f"{name}  x" in (shown := capsys.readouterr().out) and "ignored" in shown
    call_command("planner_corrections", "--restore", name)
    assert planned_speed(world.org)[0] == after
    for wrong in ("--restore", "--ignore"):
        with pytest.raises(CommandError):
            call_command("planner_corrections", wrong, name if wrong == "--restore" else "cpu-fake")


def test_what_was_learnt_is_not_learnt_again_from_its_own_predictions(world: World, provider: FakeProvider) -> None:
    before, _ = planned_speed(world.org)
    world.serve(30, speed=before / 1.4)
    check(provider)
    one = factors(now())[KEY]
    for _ in range(3):
        check(provider)
    assert factors(now())[KEY] == one


def test_few_requests_and_old_ones_teach_nothing(world: World, provider: FakeProvider) -> None:
    world.serve(19, speed=60.0)
    assert check(provider)[SPEED].count == 19
    assert factors(now()) == {}
    world.serve(10, speed=60.0)
    check(provider)
    assert KEY in factors(now())
    assert factors(now() + REMEMBERED) == {}


def test_a_first_token_that_waited_for_others_teaches_nothing(world: World, provider: FakeProvider) -> None:
    world.serve(40, accepted_at=make.NOON)
    rows = check(provider)
    assert rows[FIRST].load == 40 and rows[FIRST].expected is None
    assert (*KEY[:3], TTFT) not in factors(now())


@pytest.mark.threat("A1")
def test_another_organisation_learns_a_number_and_no_name(world: World, provider: FakeProvider) -> None:
    other = World()
    before, _ = planned_speed(other.org)
    world.serve(30, speed=before / 1.4)
    check(provider)
    PlanCheck.objects.across_orgs("the window is in the past").update(window_end=now())
    client = make.client(other.member.user)
    body = {"model": "tiny", "needs": {"concurrency": 1}}
    told = client.post(f"/api/v1/orgs/{other.org.slug}/plans", body, "application/json").json()
    assert told["choice"]["predicted"]["tokens_per_second"]["value"] < before
    for secret in (world.org.slug, str(world.org.pk), str(world.deployment.pk)):
        assert secret not in str(told)
    shown = client.get(f"/api/v1/orgs/{other.org.slug}/deployments/{other.deployment.name}").json()
    assert shown["planned_against_measured"] == []


def test_a_deployment_shows_planned_beside_measured(world: World, provider: FakeProvider) -> None:
    world.serve(25, speed=80.0)
    check(provider)
    client = make.client(world.member.user)
    url = f"/api/v1/orgs/{world.org.slug}/deployments/{world.deployment.name}"
    speed, first = sorted(
        client.get(url).json()["planned_against_measured"], key=lambda each: each["unit"], reverse=True
    )
    assert (speed["metric"], speed["unit"], speed["n"], speed["enough"], speed["measured"]) == (
        SPEED, "tokens/s", 25, True, pytest.approx(80.0),
    )  # fmt: skip
    assert speed["planned"] > 0 and speed["window_start"] < speed["window_end"]
    assert (first["metric"], first["unit"], first["measured"]) == (FIRST, "ms", 300.0)


def test_the_task_waits_while_the_provider_is_away(
    world: World, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.serve(25)

    def away() -> Any:
        raise ProviderUnavailable("away")

    monkeypatch.setattr(provider, "offers", away)
    tasks.check_plans_by_the_clock()
    assert not PlanCheck.objects.across_orgs("nothing may be written").exists()


def test_deployments_that_are_gone_are_not_measured(world: World, provider: FakeProvider) -> None:
    world.serve(25)
    Deployment.objects.across_orgs("it is gone").update(state="deleted")
    assert check(provider) == {}
