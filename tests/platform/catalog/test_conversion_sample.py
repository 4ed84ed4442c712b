"""An organisation's own text for the quality check: measured with, and found nowhere, neither while it is needed nor afterwards."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

from berth.catalog.conversion import program, sample, services, work
from berth.catalog.conversion.models import Conversion, ConversionSample
from berth.catalog.errors import Refused
from berth.catalog.models import ModelVersion
from berth.catalog.services import import_sample
from berth.orgs.models import Organisation, Role
from berth.web.errors import ApiError
from tests import make

pytestmark = pytest.mark.django_db

CANARY = "quenched-marmalade-7719"
TEXT = (
    f"{CANARY} The harbour master writes down each ship that comes in, and which berth it was given for the night. " * 4
)
MODEL = "smollm2-135m-instruct"


@pytest.fixture
def org() -> Organisation:
    return make.org()


@pytest.fixture
def version(org: Organisation) -> ModelVersion:
    return import_sample(org, None)


def asked(org: Organisation, quantization: str = "Q8_0", text: str | None = TEXT) -> Conversion:
    return services.start_conversion(org, None, MODEL, 1, quantization, sample_text=text)


def looked(conversion: Conversion) -> Conversion:
    work.look(conversion.pk, datetime.now(UTC))
    conversion.refresh_from_db()
    return conversion


def files_with_it(*folders: Path) -> list[Path]:
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                if path.is_file() and path.stat().st_size < 1 << 22 and CANARY.encode() in path.read_bytes():
                    found.append(path)
            except OSError:
                continue  # it went while we looked
    return found


def tables_with_it() -> list[str]:
    """Every row of every table as text; what is binary stands there in hexadecimal."""
    found = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(
                f'SELECT count(*) FROM "{table}" AS row WHERE row::text LIKE %s OR row::text LIKE %s',
                [f"%{CANARY}%", f"%{CANARY.encode().hex()}%"],
            )
            if cursor.fetchone()[0]:
                found.append(table)
    return found


def test_it_is_measured_with_and_found_nowhere(
    org: Organisation, version: ModelVersion, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(work, "PLACES", 10)
    conversion = asked(org)
    own = [Path(settings.STORE_DIR) / "conversions", *Path(gettempdir()).glob("berth-quality-*")]
    limit, states = time.monotonic() + 200, set()
    while not looked(conversion).final:
        states.add(conversion.state)
        assert files_with_it(*own) == []
        assert tables_with_it() == []
        assert time.monotonic() < limit, (conversion.state, conversion.step)
        time.sleep(0.2)
    assert conversion.state == "done", conversion.message
    assert "measuring" in states
    assert conversion.quality is not None
    assert conversion.quality["tokens"] == conversion.quality["sample"]["tokens"] == 10
    assert conversion.quality["sample"]["reference_perplexity"] != conversion.quality["reference_perplexity"]
    assert not ConversionSample.objects.for_org(org).exists()
    assert tables_with_it() == []
    assert CANARY not in caplog.text


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Programs are not started; what they would have been told."""
    started: list[dict[str, Any]] = []

    def start(folder: program.Folder, module: str, **job: Any) -> None:
        folder.path.mkdir(parents=True, exist_ok=True)
        started.append({"module": module, **job})

    monkeypatch.setattr(program.Folder, "start", start)
    return started


def test_it_goes_however_the_conversion_ends(org: Organisation, version: ModelVersion, still: list[Any]) -> None:
    cancelled, failed = asked(org), asked(org, "Q6_K")
    assert sample.text_of(cancelled) == TEXT
    services.cancel_conversion(org, str(cancelled.pk))
    assert looked(cancelled).state == "cancelled"
    looked(failed)
    (program.Folder(failed.pk).path / "failure.json").write_text('{"reason": "source_damaged", "message": "No."}')
    assert looked(failed).state == "failed"
    assert not ConversionSample.objects.for_org(org).exists()


def test_only_the_program_that_measures_gets_it(org: Organisation, version: ModelVersion, still: list[Any]) -> None:
    conversion = looked(asked(org))
    (program.Folder(conversion.pk).path / "result.json").write_text('{"format": 1, "files": []}')
    looked(conversion)
    assert [(told["module"], told.get("sample")) for told in still] == [("convert", None), ("quality", TEXT)]


def test_a_running_conversion_takes_no_text_afterwards(org: Organisation, version: ModelVersion) -> None:
    running = asked(org, text=None)
    assert asked(org, text=None) == running
    with pytest.raises(ApiError) as caught:
        asked(org)
    assert (caught.value.status, caught.value.code) == (409, "conversion_running")
    assert not ConversionSample.objects.for_org(org).exists()


def test_it_opens_for_its_own_conversion_only(org: Organisation, version: ModelVersion) -> None:
    one, other = asked(org), asked(org, "Q6_K", text=TEXT[::-1])
    mine = ConversionSample.objects.for_org(org).get(conversion=one)
    ConversionSample.objects.for_org(org).filter(conversion=other).update(sealed=bytes(mine.sealed))
    with pytest.raises(Refused) as caught:
        sample.text_of(other)
    assert caught.value.code == "sample_unreadable"


def test_the_api_takes_it_within_bounds_and_never_shows_it(org: Organisation, version: ModelVersion) -> None:
    client = make.client(make.member(org, Role.DEVELOPER).user)
    place = f"/api/v1/orgs/{org.slug}/models/{MODEL}/versions/1/conversions"
    for wrong in (CANARY, TEXT * 1000):
        answer = client.post(place, {"quantization": "Q8_0", "sample_text": wrong}, content_type="application/json")
        assert answer.status_code in (400, 422), answer.content
        assert answer.json()["error"]["field"] == "sample_text"
        assert CANARY not in answer.content.decode()
    answer = client.post(place, {"quantization": "Q8_0", "sample_text": TEXT}, content_type="application/json")
    assert answer.status_code == 202, answer.content
    shown = client.get(f"/api/v1/orgs/{org.slug}/conversions/{answer.json()['id']}")
    assert CANARY not in answer.content.decode() + shown.content.decode()
    assert ConversionSample.objects.for_org(org).count() == 1
