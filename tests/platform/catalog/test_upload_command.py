"""The upload from a terminal: parts side by side, going on after an interruption, sentences for people."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from berth.catalog import client as terminal
from berth.catalog import importer
from berth.catalog.__main__ import main
from berth.catalog.client import ClientError, Session
from berth.catalog.models import ArtefactFile, ModelImport
from tests import make
from tests.platform.catalog import hub_files

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def session(live_server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    for module in ("berth.catalog.imports", "berth.catalog.sources.upload", "berth.catalog.import_api"):
        monkeypatch.setattr(f"{module}.PART_BYTES", 1000)
    monkeypatch.setattr("berth.catalog.client.TRIES", 1)
    make.member(make.org("acme"), "developer", make.user("dev@example.org", password=make.PASSWORD))
    made = Session(live_server.url)
    made.sign_in("dev@example.org", make.PASSWORD)
    yield made
    made.close()


def test_it_goes_on_where_it_was(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = hub_files.model()
    paths = list(hub_files.written(files, tmp_path).values())
    send, sent = terminal._send_part, []

    def interrupted(session: Session, path: str, part: terminal.Part) -> None:
        if len(sent) == 5:
            raise ClientError("the line went dead", again=True)
        send(session, path, part)
        sent.append((part.name, part.number))

    monkeypatch.setattr(terminal, "_send_part", interrupted)
    with pytest.raises(ClientError):
        terminal.upload(session, "acme", "tiny", paths, at_once=1)
    first = list(sent)
    sent.clear()
    monkeypatch.setattr(
        terminal, "_send_part", lambda *given: (send(*given), sent.append((given[2].name, given[2].number)))
    )
    told: list[tuple[int, int]] = []
    run = terminal.upload(session, "acme", "tiny", paths, told=lambda done, total: told.append((done, total)))
    assert not set(first) & set(sent)  # nothing was sent twice
    assert run["state"] == "queued"
    assert told[-1] == (sum(map(len, files.values())),) * 2
    row = ModelImport.objects.across_orgs("the test has one organisation").get()
    importer.run_import(row.pk)
    assert terminal.watch(session, "acme", run["id"])["state"] == "done"
    kept = ArtefactFile.objects.for_org(row.org_id)
    assert {each.name: each.sha256 for each in kept} == {n: hashlib.sha256(c).hexdigest() for n, c in files.items()}


def test_what_goes_wrong_is_one_sentence(
    session: Session, live_server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "password").write_text("wrong\n")
    (tmp_path / "model.bin").write_bytes(b"x")
    command = ["upload", "acme", str(tmp_path / "model.bin"), "--name", "tiny", "--email", "dev@example.org"]
    command += ["--password-file", str(tmp_path / "password"), "--url"]
    assert main([*command, live_server.url]) == 1
    (tmp_path / "password").write_text(make.PASSWORD)
    assert main([*command, live_server.url]) == 1
    assert "safetensors" in capsys.readouterr().err
    assert main([*command, "http://127.0.0.1:9"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert main([*command, "ftp://x"]) == 1
