"""Imports from request to version: every source, resumed, cancelled, retried, and told in words."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from berth.catalog import credentials, importer, imports, leases, staging
from berth.catalog.import_models import ImportState
from berth.catalog.models import ArtefactFile, ImportFile, ModelImport, ModelVersion, SourceCredential
from berth.catalog.store import store
from berth.orgs.models import Organisation
from berth.web.errors import ApiError, Conflict, Forbidden
from tests import make
from tests.platform.catalog import hub_files
from tests.platform.catalog.fake_hub import Hub
from tests.platform.catalog.gguf_bytes import File
from tests.seaweed import BUCKET, KEY_ID, SECRET, Seaweed, client

pytestmark = pytest.mark.django_db


@pytest.fixture
def org() -> Organisation:
    return make.org()


def start(org: Organisation, person: Any = None, **body: Any) -> ModelImport:
    return imports.start_import(org, person or make.member(org, "developer").user, {"name": "tiny", **body})


def moved(run: ModelImport, times: int = 1) -> ModelImport:
    """After a worker has had it, waiting for nothing."""
    for _ in range(times):
        ModelImport.objects.for_org(run.org_id).filter(pk=run.pk).update(check_at=timezone.now())
        importer.run_import(run.pk)
    run.refresh_from_db()
    return run


def version_of(run: ModelImport) -> ModelVersion:
    assert run.state == ImportState.DONE, (run.code, run.message)
    assert run.version is not None
    return run.version


def test_from_the_hub(org: Organisation, hub: Hub) -> None:
    files = hub_files.sharded(README__md=b"# tiny")
    hub.add("acme/tiny", files, licence="mit")
    run = moved(start(org, source="hub", repository="acme/tiny"))
    version = version_of(run)
    assert (version.source, version.origin, version.licence) == ("hub", f"acme/tiny@{'c' * 40}", "mit")
    kept = {each.name: each for each in ArtefactFile.objects.for_org(org).filter(artefact__version=version)}
    assert set(kept) == set(hub_files.sharded())
    for name, each in kept.items():
        assert each.sha256 == hashlib.sha256(files[name]).hexdigest()
        assert b"".join(store().read(each.sha256)) == files[name]
    assert kept["model.safetensors.index.json"].role == "index"
    assert run.bytes_done == run.bytes_total == sum(len(files[name]) for name in kept)
    assert not staging.scratch_of(run.pk).exists()
    again = moved(start(org, source="hub", repository="acme/tiny"))
    assert again.version == version  # the same files are the same version


@pytest.mark.threat("M7")
def test_a_branch_that_moves_changes_nothing_of_an_import_on_its_way(org: Organisation, hub: Hub) -> None:
    repository = hub.add("acme/tiny", hub_files.model(), branches={"main": "a" * 40})
    run = start(org, source="hub", repository="acme/tiny")
    hub.behaviour.fail = [500]
    assert moved(run).state == ImportState.QUEUED
    assert (run.code, run.params["why"], run.failures) == ("waiting", "status_500", 1)
    repository.branches |= {"main": "b" * 40, "of old": "a" * 40}
    assert version_of(moved(run)).origin == f"acme/tiny@{'a' * 40}"


@pytest.mark.parametrize(
    ("files", "options", "body", "code"),
    [
        ({"a.Q4_0.gguf": b"x", "b.Q8_0.gguf": b"x"}, {}, {}, "several_models"),
        ({"pytorch_model.bin": b"x"}, {}, {}, "pickle"),
        (hub_files.model(), {"gated": True, "token": "t"}, {}, "hub_gated"),
        (hub_files.model(), {}, {"revision": "v9"}, "hub_revision_not_found"),
        (hub_files.model(config__json=hub_files.as_json(hub_files.CONFIG | {"auto_map": {"a": "b.C"}})), {}, {}, "remote_code"),
        ({k: v for k, v in hub_files.sharded().items() if "-00001-of" not in k}, {}, {}, "shard_missing"),
        (hub_files.adapter(), {}, {}, "adapter_base_missing"),
    ],
)  # fmt: skip
def test_what_fails_says_why(
    org: Organisation, hub: Hub, files: hub_files.Files, options: dict[str, Any], body: dict[str, Any], code: str
) -> None:
    hub.add("acme/tiny", files, **options)
    run = moved(start(org, source="hub", repository="acme/tiny", **body))
    assert (run.state, run.code) == (ImportState.FAILED, code)
    assert run.message and run.finished_at is not None
    assert not ModelVersion.objects.for_org(org).exists()
    assert not staging.scratch_of(run.pk).exists()


def test_an_adapter_and_its_base(org: Organisation, hub: Hub) -> None:
    hub.add("acme/tiny", hub_files.model())
    hub.add("acme/lora", hub_files.adapter())
    hub.add("acme/wide", hub_files.adapter(hidden=64))
    base = version_of(moved(start(org, source="hub", repository="acme/tiny")))
    adapter = version_of(moved(start(org, source="hub", repository="acme/lora", name="tiny-lora", base="tiny")))
    assert adapter.base == base and adapter.facts == base.facts
    artefact = adapter.artefacts.get()
    assert (artefact.format, artefact.engines, artefact.adapter["engines"]) == ("lora", [], ["vllm", "llamacpp"])
    assert {each.role for each in artefact.files.all()} == {"adapter"}
    wrong = moved(start(org, source="hub", repository="acme/wide", name="wide", base="tiny@1"))
    assert wrong.code == "adapter_base_mismatch"
    with pytest.raises(ApiError, match="base_unknown"):
        start(org, source="hub", repository="acme/lora", name="x", base="tiny@2")


def test_it_gives_up_after_ten_tries_without_a_byte(org: Organisation, hub: Hub) -> None:
    hub.add("acme/tiny", hub_files.model())
    hub.behaviour.fail = [503] * 100
    run = moved(start(org, source="hub", repository="acme/tiny"), times=importer.MOST_FAILURES)
    assert (run.state, run.failures) == (ImportState.QUEUED, importer.MOST_FAILURES)
    assert run.check_at > timezone.now() + timedelta(seconds=100)
    assert (moved(run).state, run.code) == (ImportState.FAILED, "source_unreachable")


def test_by_address_and_by_path(org: Organisation, hub: Hub, tmp_path: Path) -> None:
    content = File().packed()
    hub.plain["/m/tiny.gguf"] = content
    run = moved(start(org, source="url", urls=[f"http://{hub.storage_place}/m/tiny.gguf"]))
    assert version_of(run).artefacts.get().format == "gguf"
    (tmp_path / "tiny.gguf").write_bytes(content)
    with pytest.raises(Forbidden):
        start(org, source="path", path=str(tmp_path / "tiny.gguf"))
    operator = make.member(org, "developer", make.user(operator=True)).user
    again = moved(start(org, operator, source="path", path=str(tmp_path / "tiny.gguf")))
    assert again.version == run.version


@pytest.mark.threat("G6")
@pytest.mark.threat("M9")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"source": "hub"}, "repository"),
        ({"source": "hub", "repository": "a/b", "path": "/etc"}, "path"),
        ({"source": "hub", "repository": "--help"}, "repository"),
        ({"source": "hub", "repository": "a/b", "revision": "../../x"}, "revision"),
        ({"source": "hub", "repository": "a/b", "files": "../x"}, "files"),
        ({"source": "hub", "repository": "a/b", "name": "$(id)"}, "name"),
        ({"source": "hub", "repository": "a/b", "name": "--trust-remote-code"}, "name"),
        ({"source": "hub", "repository": "a/b", "credential": "none"}, "credential"),
        ({"source": "url", "urls": ["http://169.254.169.254/latest/meta-data/x.gguf"]}, None),
        ({"source": "url", "urls": ["https://user@example.org/x.gguf"]}, None),
        ({"source": "url", "urls": ["file:///etc/passwd"]}, None),
        ({"source": "s3", "uri": "s3://bucket/x"}, "credential"),
        ({"source": "upload", "upload": [{"name": "../x.gguf", "size": 1}]}, "upload"),
        ({"source": "upload", "upload": [{"name": "x.bin", "size": 1}]}, "upload"),
        ({"source": "upload", "upload": [{"name": "x.gguf", "size": 1}, {"name": "x.gguf", "size": 1}]}, "upload"),
    ],
)
def test_what_is_wrong_with_a_request_is_told_at_once(
    org: Organisation, body: dict[str, Any], field: str | None
) -> None:
    with pytest.raises(ApiError) as refused:
        start(org, **body)
    assert refused.value.field == field
    assert not ModelImport.objects.for_org(org).exists()


def test_cancelled_before_and_while_it_runs(org: Organisation, hub: Hub) -> None:
    hub.add("acme/tiny", hub_files.model())
    waiting = imports.cancel_import(org, start(org, source="hub", repository="acme/tiny").pk)
    assert waiting.state == ImportState.CANCELLED
    importer.run_import(waiting.pk)
    assert hub.asked == []
    run = start(org, source="hub", repository="acme/tiny")
    claimed = leases.claim(run.pk, timezone.now())
    assert claimed is not None
    assert imports.cancel_import(org, run.pk).state == ImportState.QUEUED  # its worker hears of it
    importer._Run(claimed).go()
    run.refresh_from_db()
    assert (run.state, run.lease_token) == (ImportState.CANCELLED, None)
    assert imports.cancel_import(org, run.pk).state == ImportState.CANCELLED


def test_leases(org: Organisation, hub: Hub) -> None:
    hub.add("acme/tiny", hub_files.model())
    run, now = start(org, source="hub", repository="acme/tiny"), timezone.now()
    assert leases.due(now + timedelta(seconds=1)) == [run.pk]
    assert leases.due(now + timedelta(seconds=2)) == []  # it was just sent
    first = leases.claim(run.pk, now)
    assert first is not None
    assert leases.claim(run.pk, now + timedelta(seconds=19)) is None
    assert leases.due(now + timedelta(seconds=15)) == []
    second = leases.claim(run.pk, now + leases.LEASE + timedelta(seconds=1))  # the first worker was killed
    assert second is not None
    assert not leases.write(first, now, state=ImportState.DONE)
    importer._Run(first).go()  # it comes back and finds that it has lost
    run.refresh_from_db()
    assert (run.state, run.lease_token) == (ImportState.QUEUED, second.lease_token)
    assert hub.asked == []


def test_a_source_that_changes_is_listed_anew(org: Organisation, hub: Hub) -> None:
    hub.plain["/m/tiny.gguf"] = File().packed()
    run = start(org, source="url", urls=[f"http://{hub.storage_place}/m/tiny.gguf"])
    hub.behaviour.cut_after, hub.behaviour.cuts = 10, 1
    assert moved(run).state == ImportState.QUEUED
    hub.plain["/m/tiny.gguf"] = File(data=b"\1" * 256).packed()
    assert moved(run).params["why"] == "source_changed"
    digest = hashlib.sha256(hub.plain["/m/tiny.gguf"]).hexdigest()
    assert version_of(moved(run)).artefacts.get().files.get().sha256 == digest


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    for module in ("berth.catalog.imports", "berth.catalog.sources.upload", "berth.catalog.import_api"):
        monkeypatch.setattr(f"{module}.PART_BYTES", 1000)
    return 1000


class Uploader:
    def __init__(self, org: Organisation) -> None:
        self.client = make.client(make.member(org, "developer").user)
        self.url = f"/api/v1/orgs/{org.slug}/imports"

    def start(self, files: dict[str, bytes], **more: Any) -> dict[str, Any]:
        upload = [{"name": name, "size": len(content)} for name, content in files.items()]
        answer = self.client.post(
            self.url, {"source": "upload", "name": "mine", "upload": upload, **more}, "application/json"
        )
        assert answer.status_code == 201, answer.content
        return dict(answer.json())

    def put(self, run: str, name: str, number: int, content: bytes, told: str | None = None) -> Any:
        headers = {"X-Part-SHA256": told if told is not None else hashlib.sha256(content).hexdigest()}
        address = f"{self.url}/{run}/files/{name}/parts/{number}"
        return self.client.put(address, content, "application/octet-stream", headers=headers)


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_an_upload_in_parts_that_come_as_they_like(
    org: Organisation, small_parts: int, place: str, request: pytest.FixtureRequest, settings: Any, tmp_path: Path
) -> None:
    if place == "s3":
        bucket_store(request.getfixturevalue("s3"), settings, tmp_path)
    files = hub_files.model()
    uploader = Uploader(org)
    started = uploader.start(files)
    assert started["state"] == "receiving" and started["part_bytes"] == small_parts
    parts = [
        (name, number, content[number * small_parts : (number + 1) * small_parts])
        for name, content in files.items()
        for number in range(-(-len(content) // small_parts))
    ]
    random.Random(3).shuffle(parts)
    *early, last = parts
    for name, number, content in early:
        assert uploader.put(started["id"], name, number, content).status_code == 200
    assert uploader.put(started["id"], *early[0]).status_code == 200  # again is harmless
    told = uploader.client.get(f"{uploader.url}/{started['id']}").json()
    assert [(each["name"], each["parts"]) for each in told["missing"] if each["parts"]] == [(last[0], [last[1]])]
    assert told["bytes_done"] == sum(map(len, files.values())) - len(last[2])
    assert uploader.put(started["id"], *last).json()["state"] == "queued"
    assert uploader.put(started["id"], *last).json()["error"]["code"] == "not_receiving"
    run = moved(ModelImport.objects.for_org(org).get())
    kept = ArtefactFile.objects.for_org(org).filter(artefact__version=version_of(run))
    assert {each.name: each.sha256 for each in kept} == {n: hashlib.sha256(c).hexdigest() for n, c in files.items()}
    assert all(store().verify(each.sha256) for each in kept)
    file = ImportFile.objects.for_org(org).first()
    assert file is not None
    with pytest.raises(FileNotFoundError):
        staging.read_part(run.pk, file.pk, 0)


def bucket_store(service: Seaweed, settings: Any, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "s3_access_key_id").write_text(KEY_ID)
    (tmp_path / "secrets" / "s3_secret_access_key").write_text(SECRET)
    settings.SECRETS_DIR, settings.STORE_DIR = tmp_path / "secrets", tmp_path / "store"
    settings.STORE_S3_BUCKET, settings.STORE_S3_ENDPOINT = BUCKET, service.endpoint
    settings.STORE_S3_PREFIX = f"{tmp_path.name}/"


def test_parts_that_are_not_what_they_say(org: Organisation, small_parts: int) -> None:
    uploader = Uploader(org)
    run = uploader.start({"tiny.gguf": b"x" * 2500})["id"]
    for name, number, content, told, status, code in (
        ("tiny.gguf", 0, b"x" * 999, None, 422, "part_size"),
        ("tiny.gguf", 0, b"x" * 1001, None, 422, "part_size"),
        ("tiny.gguf", 2, b"x" * 1000, None, 422, "part_size"),
        ("tiny.gguf", 0, b"x" * 1000, "0" * 64, 422, "part_checksum"),
        ("tiny.gguf", 0, b"x" * 1000, "", 422, "part_checksum"),
        ("tiny.gguf", 3, b"x" * 1000, None, 404, "not_found"),
        ("other.gguf", 0, b"x" * 1000, None, 404, "not_found"),
    ):
        answer = uploader.put(run, name, number, content, told)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert ModelImport.objects.for_org(org).get().bytes_done == 0


def test_a_file_that_arrives_differently_than_promised(org: Organisation, small_parts: int) -> None:
    uploader = Uploader(org)
    content = File().packed()
    upload = [{"name": "tiny.gguf", "size": len(content), "sha256": "0" * 64}]
    answer = uploader.client.post(
        uploader.url, {"source": "upload", "name": "mine", "upload": upload}, "application/json"
    )
    assert uploader.put(answer.json()["id"], "tiny.gguf", 0, content).status_code == 200
    assert moved(ModelImport.objects.for_org(org).get()).code == "checksum_mismatch"


def test_an_organisations_own_bucket_with_a_sealed_key(org: Organisation, s3: Seaweed, settings: Any) -> None:
    settings.OUTBOUND_PRIVATE_HOSTS = [s3.host]
    asks: Any = client(s3)
    for name, raw in hub_files.model().items():
        asks.put_object(Bucket=BUCKET, Key=f"sealed/{name}", Body=raw)
    user = make.member(org, "developer").user
    made = credentials.create_credential(
        org, user, name="bucket", kind="s3", key_id=KEY_ID, secret=SECRET.replace(" ", "-"), endpoint=s3.endpoint
    )
    assert SECRET.encode() not in bytes(made.sealed) and KEY_ID.encode() not in bytes(made.sealed)
    refused = moved(start(org, user, source="s3", uri=f"s3://{BUCKET}/sealed/", credential="bucket"))
    assert refused.code == "s3_forbidden"  # the secret was another
    row_id = SourceCredential.objects.for_org(org).get().pk
    right = {"key_id": KEY_ID, "secret": SECRET, "endpoint": s3.endpoint, "region": "us-east-1"}
    SourceCredential.objects.for_org(org).update(sealed=credentials.seal(right, org_id=org.pk, row_id=row_id))
    run = moved(start(org, user, source="s3", uri=f"s3://{BUCKET}/sealed/", credential="bucket"))
    assert version_of(run).origin == f"s3://{BUCKET}/sealed/"
    assert SECRET not in repr(run.request)
    waiting = start(org, user, source="s3", uri=f"s3://{BUCKET}/sealed/", credential="bucket")
    credentials.delete_credential(org, "bucket")
    assert moved(waiting).code == "credential_gone"


@pytest.mark.threat("K1")
def test_credentials_are_shown_without_their_secret_and_bound_to_their_row(org: Organisation) -> None:
    person = make.client(make.member(org, "developer").user)
    url = f"/api/v1/orgs/{org.slug}/source-credentials"
    body = {"name": "hub", "kind": "hub", "secret": "hf_very_secret_token_1234"}
    made = person.post(url, body, "application/json")
    assert made.status_code == 201, made.content
    assert made.json() | {"created_at": ""} == {
        "name": "hub",
        "kind": "hub",
        "host": "huggingface.co",
        "hint": "1234",
        "created_at": "",
    }
    assert "very_secret" not in person.get(url).content.decode()
    assert person.post(url, body, "application/json").status_code == 409
    row = SourceCredential.objects.for_org(org).get()
    assert b"very_secret" not in bytes(row.sealed)
    assert credentials.token_for(row, "https://huggingface.co/x") == body["secret"]
    with pytest.raises(ApiError, match="credential_other_host"):
        credentials.token_for(row, "https://evil.example")
    row.org_id = make.org().pk  # moved to another organisation by hand
    with pytest.raises(ApiError, match="credential_unreadable"):
        credentials.token_for(row, "https://huggingface.co/x")
    for bad in (
        {"kind": "bearer", "host": "127.0.0.1"},
        {"kind": "s3"},
        {"kind": "hub", "endpoint": "http://mirror.example"},
    ):
        answer = person.post(url, {"name": "x", "secret": "s", **bad}, "application/json")
        assert answer.status_code in {201, 422}
        assert (answer.status_code == 201) == (bad["kind"] == "bearer")  # a host is only judged when it is dialled
    assert person.delete(f"{url}/hub").status_code == 204


def test_so_many_imports_at_a_time(org: Organisation, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berth.catalog.imports.MOST_RUNNING", 1)
    start(org, source="hub", repository="acme/tiny")
    with pytest.raises(Conflict, match="too_many_imports"):
        start(org, source="hub", repository="acme/tiny")


@pytest.mark.django_db(transaction=True)
def test_an_import_killed_at_twenty_random_moments_ends_with_the_same_checksums(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole job, in a process of its own each time, ended by SIGKILL: while it lists, fetches, verifies and stores."""
    org = make.org()
    files = hub_files.sharded()
    hub.add("acme/tiny", files)
    hub.behaviour.pause, hub.behaviour.chunk = 0.02, 1000
    run = start(org, source="hub", repository="acme/tiny")
    moments, kills, seen = random.Random(5), 0, set()
    while kills < 20:
        child = os.fork()
        if child == 0:
            try:
                for connection in connections.all(initialized_only=True):
                    connection.connection = None  # the parent's; a new one is opened
                importer.run_import(run.pk)
            finally:
                os._exit(0)
        time.sleep(moments.uniform(0.01, 0.5))
        ended, _ = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            kills += 1
        run.refresh_from_db()
        seen.add(run.state)
        if run.final:  # it got through between two kills: once more, under another name
            assert run.state == ImportState.DONE, run.message
            run = start(org, source="hub", repository="acme/tiny", name=f"tiny-{kills}")
        ModelImport.objects.for_org(org).filter(pk=run.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    assert len(seen) > 1
    hub.behaviour.pause = 0
    kept = ArtefactFile.objects.for_org(org).filter(artefact__version=version_of(moved(run)))
    assert {each.name: each.sha256 for each in kept} == {n: hashlib.sha256(c).hexdigest() for n, c in files.items()}
    assert all(store().verify(each.sha256) for each in kept)
