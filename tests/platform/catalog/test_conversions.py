"""Artefacts made of others: asked for once, followed, measured, kept or refused, and stopped."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from berth.catalog.conversion import program, services, targets, work
from berth.catalog.conversion.models import Conversion, ConversionState
from berth.catalog.models import Artefact, ArtefactFile, ModelVersion
from berth.catalog.services import import_sample
from berth.catalog.store import store
from berth.orgs.models import Organisation
from berth.web.errors import ApiError, NotFound
from berth_runtime.convert import job as runtime_job
from berth_runtime.convert.mixtures import MIXTURES
from berth_runtime.quality import floors
from berth_runtime.quality import job as runtime_quality
from berth_runtime.quality.measure import Quality
from tests import make

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
GOOD = {
    "tokens": 30,
    "perplexity": 10.1,
    "reference_perplexity": 10.0,
    "divergence": 0.01,
    "divergence_p99": 0.1,
    "agreement": 0.95,
}


@pytest.fixture
def org() -> Organisation:
    return make.org()


@pytest.fixture
def version(org: Organisation) -> ModelVersion:
    return import_sample(org, None)


def asked(org: Organisation, quantization: str = "Q8_0") -> Conversion:
    return services.start_conversion(org, None, "smollm2-135m-instruct", 1, quantization)


def looked(conversion: Conversion, now: datetime = NOW) -> Conversion:
    work.look(conversion.pk, now)
    conversion.refresh_from_db()
    return conversion


def until_final(conversion: Conversion) -> Conversion:
    limit = time.monotonic() + 200
    while not looked(conversion, datetime.now(UTC)).final:
        assert time.monotonic() < limit, (conversion.state, conversion.step, conversion.message)
        time.sleep(0.2)
    return conversion


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Programs are not started; what they would have been told."""
    started: list[tuple[str, dict[str, Any]]] = []

    def start(folder: program.Folder, module: str, **job: Any) -> None:
        folder.path.mkdir(parents=True, exist_ok=True)
        started.append((module, job))

    monkeypatch.setattr(program.Folder, "start", start)
    return started


def say(conversion: Conversion, name: str, content: Any) -> None:
    (program.Folder(conversion.pk).path / name).write_bytes(msgspec.json.encode(content))


def test_a_real_one_is_made_measured_and_kept(
    org: Organisation, version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "PLACES", 20)
    conversion = until_final(asked(org))
    assert conversion.state == ConversionState.DONE, conversion.message
    made = Artefact.objects.for_org(org).get(version=version, quantization="Q8_0")
    assert conversion.artefact == made
    assert made.made_from is not None
    assert (made.format, made.engines, made.made_from.quantization) == ("gguf", ["llamacpp", "ollama"], "Q4_1")
    assert made.quality is not None
    assert (made.quality["tokens"], made.quality["reference"]) == (20, "Q4_1")
    assert made.quality["agreement"] > 0.9
    assert conversion.requantized
    kept = ArtefactFile.objects.for_org(org).get(artefact=made)
    assert (kept.name, kept.role) == ("model-Q8_0.gguf", "weights")
    assert store().verify(kept.sha256)
    assert not program.Folder(conversion.pk).path.exists()
    with pytest.raises(ApiError) as caught:
        asked(org)
    assert caught.value.code == "artefact_exists"


def test_asked_for_twice_it_runs_once(org: Organisation, version: ModelVersion) -> None:
    assert asked(org) == asked(org)
    assert asked(org, "Q6_K") != asked(org)


def test_progress_is_shown_with_the_time_left(org: Organisation, version: ModelVersion, still: list[Any]) -> None:
    conversion = looked(asked(org))
    assert (conversion.state, [module for module, _ in still]) == ("converting", ["convert"])
    assert still[0][1]["target"] == "Q8_0"
    folder = program.Folder(conversion.pk)
    with (folder.path / "lock").open("w") as lock:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX)
        say(conversion, "progress.json", program.Progress("quantizing", 0, 1000, 0))
        looked(conversion)
        say(conversion, "progress.json", program.Progress("quantizing", 400, 1000, 0))
        looked(conversion, NOW + timedelta(seconds=4))
    assert (conversion.step, conversion.done, conversion.total, conversion.rate) == ("quantizing", 400, 1000, 100.0)


def test_what_is_broken_is_refused_and_says_why(org: Organisation, version: ModelVersion, still: list[Any]) -> None:
    conversion = looked(asked(org))
    made = program.MadeFile("model-Q8_0.gguf", "weights", 3, "0" * 64)
    say(conversion, "result.json", program.Made(1, (made,)))
    looked(conversion)
    assert (conversion.state, [module for module, _ in still]) == ("measuring", ["convert", "quality"])
    say(conversion, "quality.json", program.Report(1, "neutral", "llama.cpp", GOOD | {"divergence": 4.0}, 0.5))
    looked(conversion)
    assert (conversion.state, conversion.code) == ("refused", "quality_too_low")
    assert "4.00 nats" in conversion.message
    assert not Artefact.objects.for_org(org).filter(quantization="Q8_0").exists()


def test_a_failure_ends_it_and_trouble_with_the_disk_is_tried_again(
    org: Organisation, version: ModelVersion, still: list[Any]
) -> None:
    conversion = looked(asked(org))
    for _ in range(2):
        say(conversion, "failure.json", program.Failed("disk_trouble", "No space left on device"))
        assert looked(conversion).state == "converting"
        looked(conversion)
    say(conversion, "failure.json", program.Failed("disk_trouble", "No space left on device"))
    assert (looked(conversion).state, conversion.code) == ("failed", "disk_trouble")
    other = looked(asked(org, "Q6_K"))
    say(other, "failure.json", program.Failed("source_damaged", "The weights are no numbers."))
    assert (looked(other).state, other.message) == ("failed", "The weights are no numbers.")


def test_it_is_stopped_at_once_and_can_be_asked_for_again(
    org: Organisation, version: ModelVersion, still: list[Any]
) -> None:
    conversion = looked(asked(org))
    services.cancel_conversion(org, str(conversion.pk))
    assert looked(conversion).state == "cancelled"
    assert not program.Folder(conversion.pk).path.exists()
    assert asked(org) != conversion


def test_a_real_program_ends_when_it_is_cancelled(org: Organisation, version: ModelVersion) -> None:
    conversion = looked(asked(org, "Q6_K"))
    folder = program.Folder(conversion.pk)
    assert folder.busy()
    services.cancel_conversion(org, str(conversion.pk))
    looked(conversion)
    assert not folder.busy()


def test_cancelling_while_a_look_is_at_work_is_not_lost(
    org: Organisation, version: ModelVersion, still: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    conversion = asked(org)
    step = work._step

    def slow(*given: Any) -> None:
        services.cancel_conversion(org, str(conversion.pk))
        step(*given)

    monkeypatch.setattr(work, "_step", slow)
    assert looked(conversion).state == "converting"
    monkeypatch.undo()
    assert looked(conversion).state == "cancelled"


def test_two_looks_never_work_at_once(
    org: Organisation, version: ModelVersion, still: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    conversion, inner = asked(org), []
    step = work._step

    def nested(*given: Any) -> None:
        with program.Folder(conversion.pk).alone() as alone:
            inner.append(alone)
        step(*given)

    monkeypatch.setattr(work, "_step", nested)
    looked(conversion)
    assert inner == [False]


def test_a_program_that_is_killed_again_and_again_is_given_up(org: Organisation, version: ModelVersion) -> None:
    conversion = asked(org, "Q6_K")
    for _ in range(3):
        looked(conversion)
        child = program._children[str(program.Folder(conversion.pk).path)]
        child.kill()
        child.wait()
        looked(conversion)
    assert (conversion.state, conversion.code) == ("failed", "killed")


def test_another_machine_waits_until_the_lease_has_run_out(
    org: Organisation, version: ModelVersion, still: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    conversion = looked(asked(org))
    assert work.due(NOW) == [conversion.pk]
    monkeypatch.setattr(work, "_machine", lambda: "another")
    assert work.due(NOW) == []
    looked(conversion)
    assert len(still) == 1
    later = NOW + work.LEASE + timedelta(seconds=1)
    assert work.due(later) == [conversion.pk]
    looked(conversion, later)
    assert len(still) == 2


def test_one_at_a_time_on_a_machine_oldest_first(org: Organisation, version: ModelVersion, still: list[Any]) -> None:
    first, second = asked(org), asked(org, "Q6_K")
    assert work.due(NOW) == [first.pk]
    looked(first)
    assert work.due(NOW) == [first.pk]
    services.cancel_conversion(org, str(first.pk))
    looked(first)
    assert work.due(NOW) == [second.pk]


def test_a_stranger_sees_and_stops_nothing(org: Organisation, version: ModelVersion) -> None:
    conversion = asked(org)
    other = make.org()
    for act in (services.get_conversion, services.cancel_conversion):
        with pytest.raises(NotFound):
            act(other, str(conversion.pk))
    with pytest.raises(NotFound):
        asked(other)


def test_the_most_exact_source_is_taken() -> None:
    pairs = [("gguf", "Q4_K_M"), ("gguf", "Q8_0"), ("onnx", "INT4")]
    assert targets.best_source(pairs, "gguf", "Q5_K_M") == ("gguf", "Q8_0")
    assert targets.best_source([("onnx", "INT4")], "gguf", "Q5_K_M") is None
    assert targets.best_source([("gguf", "Q8_0")], "gguf", "Q8_0") is None


def test_both_sides_of_the_border_mean_the_same() -> None:
    assert set(targets.GGUF) | {"F32"} == set(MIXTURES)
    assert msgspec.structs.asdict(floors.BROKEN) == targets.BROKEN
    for here, there in (
        (program.Progress, runtime_job.Progress),
        (program.MadeFile, runtime_job.MadeFile),
        (program.Failed, runtime_job.Failed),
        (program.Made, runtime_job.ConversionResult),
        (program.Report, runtime_quality.QualityReport),
    ):
        assert {f.name for f in msgspec.structs.fields(here)} == {f.name for f in msgspec.structs.fields(there)}
    assert set(GOOD) == {f.name for f in msgspec.structs.fields(Quality)}
