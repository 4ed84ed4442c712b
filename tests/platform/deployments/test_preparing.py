"""Files that a deployment needs are made first: shared, cancelled with it, passed over when they are no good, whoever dies meanwhile."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from berth.catalog.conversion.models import Conversion, ConversionState
from berth.catalog.conversion.services import cancel_conversion, start_conversion
from berth.catalog.facts import to_json
from berth.catalog.models import Artefact, ModelVersion
from berth.compute.launch import Phase
from berth.compute.provider import HardwareKind
from berth.compute.providers.fake import FakeProvider
from berth.deployments import preparing
from berth.deployments.models import Deployment, Event, Preparation, Revision, State
from berth.deployments.preparations import is_placeholder
from berth.deployments.rollouts import roll_back
from berth.deployments.services import delete, deploy, resume, update
from berth.deployments.status import status_of
from berth.orgs.models import Organisation
from berth.web.errors import Conflict
from tests import make
from tests.platform.deployments.conftest import Clock
from tests.platform.deployments.looks import look, row, settle

pytestmark = pytest.mark.django_db

HALF = 2 * make.FACTS.parameters
# More than the file of 16 bits reaches on the fake machine, so that something smaller has to be made.
QUICK: dict[str, Any] = {"needs": {"concurrency": 1, "context_length": 2048, "tokens_per_second": 60}}


@pytest.fixture
def org() -> Organisation:
    return make.org()


@pytest.fixture
def version(org: Organisation) -> ModelVersion:
    """With its weights in 16 bits alone."""
    made = make.version(make.model(org, "tiny"))
    facts = make.FILE_FACTS
    plain = to_json(facts) | {"quantization": "F16", "tensor_bytes": HALF, "token_bytes": HALF}
    make.artefact(made, quantization="F16", facts=plain, size=HALF)
    return made


def wanted(org: Organisation, **more: Any) -> Deployment:
    return deploy(org, None, model="tiny", **(QUICK | more))


def running(org: Organisation) -> Conversion:
    return Conversion.objects.for_org(org).exclude(state__in=["done", "failed", "refused", "cancelled"]).get()


def finished(conversion: Conversion, divergence: float = 0.001) -> Artefact:
    """As `work` leaves it."""
    quality = {"divergence": divergence, "perplexity_change": divergence, "agreement": 0.95}
    bits = {"Q8_0": 8.5, "Q6_K": 6.6, "Q5_K_M": 5.7, "Q4_K_M": 4.9}[conversion.quantization]
    size = int(make.FACTS.parameters * bits / 8)
    facts = to_json(make.FILE_FACTS) | {
        "quantization": conversion.quantization, "tensor_bytes": size, "token_bytes": size,
    }  # fmt: skip
    made = make.artefact(
        conversion.source.version, quantization=conversion.quantization, facts=facts, size=size, quality=quality,
        made_from=conversion.source,
    )  # fmt: skip
    conversion.state, conversion.artefact, conversion.quality = ConversionState.DONE, made, quality
    conversion.save()
    return made


def ended(conversion: Conversion, state: str, code: str, message: str) -> None:
    conversion.state, conversion.code, conversion.message = state, code, message
    conversion.save()


def kinds(deployment: Deployment) -> list[str]:
    return list(
        Event.objects.for_org(deployment.org_id)
        .filter(deployment=deployment)
        .order_by("id")
        .values_list("kind", flat=True)
    )


def shown(deployment: Deployment) -> Any:
    return status_of(row(deployment))["preparation"]


def test_what_is_there_needs_no_making(org: Organisation, version: ModelVersion, provider: FakeProvider) -> None:
    deployment = deploy(org, None, model="tiny", needs={"concurrency": 1})
    assert deployment.revision
    assert deployment.revision.artefact.quantization == "F16"
    assert not Preparation.objects.for_org(org).exists()


def test_deploy_makes_measures_and_starts(
    org: Organisation, version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    deployment = wanted(org)
    look(deployment, provider, clock)
    conversion = running(org)
    assert (row(deployment).state, row(deployment).reason) == (State.QUEUED, preparing.PREPARING)
    conversion.state, conversion.done, conversion.total, conversion.rate = ConversionState.CONVERTING, 43, 100, 3.0
    conversion.save()
    look(deployment, provider, clock)
    assert "being made (43 %)" in row(deployment).message
    assert (shown(deployment)["step"], shown(deployment)["percent"], shown(deployment)["seconds_left"]) == (
        "converting",
        43,
        19.0,
    )
    conversion.state = ConversionState.MEASURING
    conversion.save()
    look(deployment, provider, clock)
    assert "quality is being measured" in row(deployment).message
    assert not provider.specs  # nothing starts before
    made = finished(conversion)
    settle(deployment, provider, clock, State.READY)
    revision = row(deployment).revision
    assert revision
    assert (revision.number, revision.artefact_id, is_placeholder(revision)) == (2, made.pk, False)
    codes = [each["code"] for each in revision.plan["choice"]["reasons"]]
    assert "quality_measured" in codes  # the measured quality is what this plan was made with
    assert shown(deployment) is None
    assert {"preparing", "prepared"} <= set(kinds(deployment))


def test_a_quantization_below_the_floor_is_passed_over_for_the_next(
    org: Organisation, version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    needs = QUICK["needs"] | {"quality": "good"}
    deployment = wanted(org, needs=needs)
    look(deployment, provider, clock)
    first = running(org)
    finished(first, divergence=0.5)
    look(deployment, provider, clock)
    look(deployment, provider, clock)
    second = running(org)
    assert second.quantization != first.quantization
    [passed] = shown(deployment)["passed"]
    assert (passed["quantization"], passed["reason"]) == (first.quantization, "measured_loss")
    assert f"{first.quantization} was passed over" in row(deployment).message
    made = finished(second)
    settle(deployment, provider, clock, State.READY)
    revision = row(deployment).revision
    assert revision
    assert revision.artefact_id == made.pk
    against = {each["quantization"]: each["code"] for each in revision.plan["rejected"]}
    assert against[first.quantization] == "measured_loss"
    assert kinds(deployment).count("quantization_passed_over") == 1


def test_a_broken_one_is_passed_over_and_never_tried_again(
    org: Organisation, version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    deployment = wanted(org)
    look(deployment, provider, clock)
    first = running(org)
    ended(first, ConversionState.REFUSED, "quality_too_low", "It agrees about 3 % of the next tokens only.")
    look(deployment, provider, clock)
    finished(running(org))
    settle(deployment, provider, clock, State.READY)
    another = wanted(org)
    assert another.revision
    assert another.revision.artefact.quantization != first.quantization
    against = {each["quantization"]: each["code"] for each in another.revision.plan["rejected"]}
    assert against[first.quantization] == "cannot_be_made"


def test_when_none_is_left_it_says_what_to_do_and_begins_anew_when_resumed(
    org: Organisation, version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    deployment = wanted(org)
    tried = []
    for _ in range(8):
        look(deployment, provider, clock)
        if row(deployment).state == State.FAILED:
            break
        conversion = running(org)
        tried.append(conversion.quantization)
        ended(conversion, ConversionState.FAILED, "converter_missing", "The converters are not installed.")
    assert len(tried) == len(set(tried)) >= 2
    failed = row(deployment)
    assert (failed.state, failed.reason) == (State.FAILED, preparing.NONE_LEFT)
    assert all(name in failed.message for name in tried[:1])
    assert shown(deployment)["state"] == "failed"
    look(deployment, provider, clock)
    assert row(deployment).state == State.FAILED
    assert not provider.specs
    resume(failed, None)
    look(deployment, provider, clock)
    finished(running(org))
    settle(deployment, provider, clock, State.READY)


def test_two_that_wait_share_a_conversion_that_ends_with_the_last(
    org: Organisation, version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    one, two = wanted(org), wanted(org)
    look(one, provider, clock)
    look(two, provider, clock)
    shared = running(org)
    assert Preparation.objects.for_org(org).filter(conversion=shared).count() == 2
    delete(row(one), None)
    look(one, provider, clock)
    shared.refresh_from_db()
    assert (row(one).state, shared.cancelled_at) == (State.DELETED, None)
    delete(row(two), None)
    look(two, provider, clock)
    shared.refresh_from_db()
    assert row(two).state == State.DELETED
    assert shared.cancelled_at is not None


def test_what_somebody_asked_for_goes_on_without_the_deployment(
    org: Organisation, version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    deployment = wanted(org)
    preparation = Preparation.objects.for_org(org).get()
    asked = start_conversion(org, None, "tiny", 1, preparation.quantization)
    look(deployment, provider, clock)
    delete(row(deployment), None)
    look(deployment, provider, clock)
    asked.refresh_from_db()
    assert asked.cancelled_at is None


def test_a_cancelled_conversion_stops_the_deployment_until_it_is_resumed(
    org: Organisation, version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    deployment = wanted(org)
    look(deployment, provider, clock)
    conversion = running(org)
    cancel_conversion(org, str(conversion.pk))
    ended(conversion, ConversionState.CANCELLED, "", "")
    look(deployment, provider, clock)
    assert (row(deployment).state, row(deployment).reason) == (State.FAILED, preparing.STOPPED)
    resume(row(deployment), None)
    look(deployment, provider, clock)
    assert running(org).pk != conversion.pk


def test_a_change_keeps_the_old_revision_until_its_files_are_made(
    org: Organisation, version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    deployment = deploy(org, None, model="tiny", needs={"concurrency": 1, "context_length": 2048})
    settle(deployment, provider, clock, State.READY)
    before = row(deployment).revision
    update(
        row(deployment), None, needs=QUICK["needs"], reason="faster", rollout={"strategy": "rolling", "hold_seconds": 0}
    )
    look(deployment, provider, clock)
    assert row(deployment).revision == before
    assert row(deployment).state == State.READY
    assert shown(deployment)["state"] == "open"
    provider.advance(next(iter(provider.specs)), Phase.FAILED)  # what serves is kept meanwhile
    settle(deployment, provider, clock, State.READY)
    assert row(deployment).revision == before
    made = finished(running(org))
    look(deployment, provider, clock)
    after = row(deployment).revision
    assert after
    assert (after.artefact_id, after.reason) == (made.pk, "faster")
    settle(deployment, provider, clock, State.READY)


def test_another_wish_takes_its_place(
    org: Organisation, version: ModelVersion, provider: FakeProvider, clock: Clock
) -> None:
    deployment = wanted(org)
    look(deployment, provider, clock)
    conversion = running(org)
    update(row(deployment), None, needs={"concurrency": 1})
    conversion.refresh_from_db()
    assert conversion.cancelled_at is not None
    revision = row(deployment).revision
    assert revision
    assert revision.artefact.quantization == "F16"
    settle(deployment, provider, clock, State.READY)
    with pytest.raises(Conflict, match="never_made"):
        roll_back(row(deployment), None, number=1)


def test_whoever_dies_anywhere_leaves_nothing_behind(
    org: Organisation, version: ModelVersion, provider: FakeProvider, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is interrupted before it writes; the next look does it."""

    class Died(BaseException):
        pass

    deployment = wanted(org)
    for name, until in (("_convert", None), ("_run", "done")):
        if until:
            finished(running(org))
        real = getattr(preparing, name)

        def dies(*args: Any, _real: Any = real, **more: Any) -> Any:
            _real(*args, **more)
            raise Died

        monkeypatch.setattr(preparing, name, dies)
        with pytest.raises(Died):
            look(deployment, provider, clock)
        assert Conversion.objects.for_org(org).count() == (1 if until else 0)  # taken back with its transaction
        assert Revision.objects.for_org(org).count() == 1
        monkeypatch.setattr(preparing, name, real)
        clock.forward(30)  # the dead one's lease
        look(deployment, provider, clock)
    settle(deployment, provider, clock, State.READY)
    assert Revision.objects.for_org(org).count() == 2
    assert Conversion.objects.for_org(org).count() == 1


@pytest.mark.threat("M5")
@pytest.mark.parametrize("reason", ["chat_template_fails", "unsafe_file"])
def test_who_fails_the_trial_start_is_in_no_route_and_the_last_good_revision_stays(
    org: Organisation, version: ModelVersion, provider: FakeProvider, clock: Clock, reason: str
) -> None:
    deployment = deploy(org, None, model="tiny", needs={"concurrency": 1, "context_length": 2048})
    settle(deployment, provider, clock, State.READY)
    clock.forward(200)
    settle(deployment, provider, clock, State.READY)  # watched for long enough to be good
    good, old = row(deployment).revision, next(iter(provider.specs))
    update(row(deployment), None, needs={"concurrency": 2, "context_length": 2048})
    look(deployment, provider, clock)
    new = next(name for name in provider.specs if name != old)
    provider.fail(new, reason)
    for _ in range(6):
        look(deployment, provider, clock)
        clock.forward(1)
        assert [each.name for each in row(deployment).replicas.filter(phase="ready")] == [old]
    assert row(deployment).revision == good
    assert row(deployment).state == State.READY
    assert [each.name for each in provider.observe_all() if each.alive] == [old]  # once in such a case is enough
    assert "rolled_back" in kinds(deployment)


@pytest.fixture
def with_a_gpu(provider: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = provider.offers
    card = msgspec.structs.replace(
        plain()[0], key="gpu-fake", kind=HardwareKind.GPU, gpu="l4", gpus=1, memory_bytes=64 << 30, devices=()
    )
    monkeypatch.setattr(provider, "offers", lambda: [*plain(), card])
    monkeypatch.setattr("berth.deployments.planning.converters_installed", lambda: True)


@pytest.mark.usefixtures("with_a_gpu")
def test_for_a_gpu_compressed_safetensors_are_made_and_run_by_their_engine(
    org: Organisation, provider: FakeProvider, clock: Clock
) -> None:
    version = make.version(make.model(org, "tiny"), facts=to_json(make.FACTS) | {"architecture": "LlamaForCausalLM"})
    plain = to_json(make.FILE_FACTS) | {"quantization": "BF16", "tensor_bytes": HALF, "token_bytes": HALF}
    make.artefact(version, quantization="BF16", format="safetensors", engines=["vllm"], facts=plain, size=HALF)
    deployment = deploy(
        org,
        None,
        model="tiny",
        needs={"quality": "good"},
        pins={"tier": "gpu-fake", "engine": "vllm", "quantization": "FP8"},
    )
    look(deployment, provider, clock)
    conversion = running(org)
    assert (conversion.format, conversion.quantization) == ("safetensors", "FP8")
    quality = {"divergence": 0.029, "perplexity_change": 0.01, "agreement": 0.87}
    made = make.artefact(
        version, quantization="FP8", format="safetensors", engines=["vllm"], quality=quality, made_from=conversion.source,
        facts=plain | {"quantization": "FP8", "tensor_bytes": HALF // 2, "token_bytes": HALF // 2}, size=HALF // 2,
    )  # fmt: skip
    conversion.state, conversion.artefact = ConversionState.DONE, made
    conversion.save()
    settle(deployment, provider, clock, State.READY)
    revision = row(deployment).revision
    assert revision
    assert (revision.artefact_id, revision.engine, revision.tier) == (made.pk, "vllm", "gpu-fake")
    assert [each.engine for each in provider.specs.values()] == ["vllm"]
