"""The same bytes are converted once in an organisation, whatever the models are called, and never for another organisation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from berth.catalog import references
from berth.catalog.conversion import program, services, work
from berth.catalog.conversion.models import Conversion, ConversionState
from berth.catalog.conversion.twins import refusals
from berth.catalog.deletion import delete_version
from berth.catalog.models import Artefact, ArtefactFile, ModelVersion
from berth.orgs.models import Organisation
from tests import make

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
SHA256 = "ab" * 32
QUALITY = {"divergence": 0.01, "perplexity_change": 0.01, "agreement": 0.95}


@pytest.fixture
def org() -> Organisation:
    return make.org()


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Programs that would have been started, by the conversion's id; none is."""
    told: list[str] = []

    def start(folder: program.Folder, module: str, **job: Any) -> None:
        told.append(folder.path.name)

    monkeypatch.setattr(program.Folder, "start", start)
    monkeypatch.setattr("berth.catalog.references.hold", lambda contents, kept=None: list(contents))
    return told


def version_of(org: Organisation, name: str, sha256: str = SHA256) -> ModelVersion:
    version = make.version(make.model(org, name))
    file(make.artefact(version, quantization="F16"), sha256)
    return version


def file(artefact: Artefact, sha256: str, name: str = "model.gguf") -> Artefact:
    ArtefactFile.objects.for_org(artefact.org_id).filter(artefact=artefact).delete()
    ArtefactFile.objects.for_org(artefact.org_id).create(
        org=artefact.org, artefact=artefact, name=name, role="weights", size=100, sha256=sha256
    )
    return artefact


def asked(version: ModelVersion, quantization: str = "Q8_0", **more: Any) -> Conversion:
    return services.start_conversion(version.org, None, version.model.name, version.number, quantization, **more)


def looked(conversion: Conversion) -> Conversion:
    work.look(conversion.pk, NOW)
    conversion.refresh_from_db()
    return conversion


def finished(conversion: Conversion) -> Artefact:
    """As `work` leaves it."""
    source = conversion.source
    made = make.artefact(source.version, quantization=conversion.quantization, quality=QUALITY, made_from=source)
    file(made, "cd" * 32)
    conversion.state, conversion.artefact, conversion.quality = ConversionState.DONE, made, QUALITY
    conversion.fallbacks, conversion.lease_until, conversion.finished_at = [{"wanted": "Q4_K"}], None, NOW
    conversion.save()
    return made


def test_what_another_version_has_is_shared_with_its_figures(org: Organisation, started: list[str]) -> None:
    one, two = version_of(org, "one"), version_of(org, "two")
    made = finished(asked(one))
    before = references.used_bytes(org)
    second = looked(asked(two))
    assert (second.state, second.quality, second.fallbacks) == ("done", QUALITY, [{"wanted": "Q4_K"}])
    shared = second.artefact
    assert shared and shared != made
    assert (shared.version, shared.quantization, shared.quality, shared.made_from) == (
        two,
        "Q8_0",
        QUALITY,
        second.source,
    )
    [mine], [theirs] = (ArtefactFile.objects.for_org(org).filter(artefact=each) for each in (shared, made))
    assert (mine.name, mine.role, mine.size, mine.sha256) == (theirs.name, theirs.role, theirs.size, theirs.sha256)
    assert references.used_bytes(org) == before
    assert started == []


def test_either_may_go_without_the_other(org: Organisation) -> None:
    one, two = version_of(org, "one"), version_of(org, "two")
    finished(asked(one))
    shared = looked(asked(two)).artefact
    delete_version(make.member(org, "owner"), "one", 1)
    assert shared and ArtefactFile.objects.for_org(org).filter(artefact=shared).count() == 1
    third = looked(asked(version_of(org, "three")))
    assert third.state == "done"


@pytest.mark.threat("A1")
def test_another_organisation_has_nothing_of_it(org: Organisation, started: list[str]) -> None:
    finished(asked(version_of(org, "one")))
    theirs = looked(asked(version_of(make.org(), "one")))
    assert theirs.state == "converting"
    assert started == [str(theirs.pk)]


def test_one_that_runs_is_waited_for_and_takes_no_place(org: Organisation, started: list[str]) -> None:
    first, second = asked(version_of(org, "one")), asked(version_of(org, "two"))
    other = asked(version_of(org, "three", "ee" * 32))
    assert looked(first).state == "converting"
    assert looked(second).state == "queued"
    Conversion.objects.for_org(org).filter(pk=first.pk).update(lease_machine="another", lease_until=NOW + work.LEASE)
    assert work.due(NOW) == [other.pk]  # it waits for nobody
    finished(first)
    assert work.due(NOW) == [second.pk]
    assert looked(second).state == "done"
    assert started == [str(first.pk)]


@pytest.mark.parametrize("end", [ConversionState.FAILED, ConversionState.CANCELLED])
def test_who_waited_for_one_that_ends_with_nothing_is_made(org: Organisation, started: list[str], end: str) -> None:
    first, second = asked(version_of(org, "one")), asked(version_of(org, "two"))
    looked(first)
    first.state, first.lease_until = end, None
    first.save()
    assert looked(second).state == "converting"
    assert started == [str(first.pk), str(second.pk)]


def test_what_was_found_broken_is_broken_for_its_twin(org: Organisation, started: list[str]) -> None:
    first, two = asked(version_of(org, "one")), version_of(org, "two")
    first.state, first.code, first.message, first.quality = "refused", "quality_too_low", "It is not kept.", QUALITY
    first.save()
    assert refusals(two) == {"Q8_0": "It is not kept."} == refusals(first.source.version)
    assert refusals(version_of(org, "three", "ee" * 32)) == {}
    assert refusals(version_of(make.org(), "two")) == {}
    second = looked(asked(two))
    assert (second.state, second.code, second.message, second.quality) == (
        "refused", "quality_too_low", "It is not kept.", QUALITY,
    )  # fmt: skip
    assert started == []


def test_other_bytes_other_names_and_other_targets_are_made(org: Organisation, started: list[str]) -> None:
    finished(asked(version_of(org, "one")))
    differs = version_of(org, "two", "ee" * 32)
    renamed = version_of(org, "three")
    file(Artefact.objects.for_org(org).get(version=renamed), SHA256, "other.gguf")
    for version, quantization in ((differs, "Q8_0"), (renamed, "Q8_0"), (version_of(org, "four"), "Q6_K")):
        conversion = looked(asked(version, quantization))
        assert conversion.state == "converting"
        assert started.pop() == str(conversion.pk)
        services.cancel_conversion(org, str(conversion.pk))
        looked(conversion)


def test_one_with_a_text_of_its_own_is_measured_with_it(org: Organisation, started: list[str]) -> None:
    finished(asked(version_of(org, "one")))
    second = looked(asked(version_of(org, "two"), sample_text="Our own words. " * 30))
    assert second.state == "converting"
    assert started == [str(second.pk)]


def test_contents_that_went_meanwhile_are_made_again(
    org: Organisation, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(contents: Any, kept: Any = None) -> None:
        raise references.ContentGone(SHA256)

    finished(asked(version_of(org, "one")))
    monkeypatch.setattr(references, "hold", gone)
    second = looked(asked(version_of(org, "two")))
    assert second.state == "converting"
    assert not Artefact.objects.for_org(org).filter(version=second.source.version, quantization="Q8_0").exists()
