"""Contents go when nobody uses them, never before, and whoever dies in between leaves nothing broken."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from berth.catalog import housekeeping, references, staging
from berth.catalog.deletion import delete_version
from berth.catalog.errors import QuotaExceeded
from berth.catalog.models import Artefact, ArtefactFile, ModelImport, ModelVersion, StoredFile
from berth.catalog.quotas import set_quota
from berth.catalog.services import import_path
from berth.catalog.store import store
from berth.orgs.models import Member
from berth.web.errors import ApiError, Conflict, NotFound
from tests import make
from tests.platform.catalog.gguf_bytes import File

pytestmark = pytest.mark.django_db


@pytest.fixture
def later() -> Any:
    return timezone.now() + references.REST + timedelta(hours=1)


def added(member: Member, path: Path, name: str = "tiny", data: bytes = b"\0" * 256) -> ModelVersion:
    path.write_bytes(File(data=data).packed())
    member.user.is_operator = True
    return import_path(member.org, member.user, str(path), name)


def digest_of(version: ModelVersion) -> str:
    return ArtefactFile.objects.for_org(version.org_id).get(artefact__version=version).sha256


def test_a_shared_content_stays_until_the_last_one_lets_go(tmp_path: Path, later: Any) -> None:
    ours, theirs = make.member(make.org(), "owner"), make.member(make.org(), "owner")
    digest = digest_of(added(ours, tmp_path / "a.gguf"))
    assert digest_of(added(theirs, tmp_path / "a.gguf")) == digest
    delete_version(ours, "tiny", 1)
    assert references.sweep(later) == 0
    assert store().verify(digest)
    delete_version(theirs, "tiny", 1)
    assert references.sweep(timezone.now()) == 0  # touched lately: somebody may be about to use it
    assert references.sweep(later) == 1
    assert not store().verify(digest)
    assert not StoredFile.objects.filter(sha256=digest).exists()


def test_who_dies_between_content_and_row_leaves_a_row_that_the_next_sweep_removes(
    tmp_path: Path, later: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = make.member(make.org(), "owner")
    digest = digest_of(added(owner, tmp_path / "a.gguf"))
    delete_version(owner, "tiny", 1)
    monkeypatch.setattr(StoredFile, "delete", _dies)
    with pytest.raises(KeyboardInterrupt):
        references.sweep(later)
    monkeypatch.undo()
    assert not store().verify(digest)
    assert StoredFile.objects.filter(sha256=digest).exists()
    # Before the next sweep somebody brings the same file: the row vouches for nothing, and it is put again.
    version = added(owner, tmp_path / "a.gguf")
    assert digest_of(version) == digest and store().verify(digest)
    assert references.sweep(later) == 0


def _dies(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_a_reference_is_never_made_to_what_is_not_there() -> None:
    references.touch("0" * 64, 5, timezone.now())
    with pytest.raises(references.ContentGone), transaction.atomic():
        references.hold([("0" * 64, 5)])
    with pytest.raises(references.ContentGone), transaction.atomic():
        references.hold([("1" * 64, 5)])


def test_strays_are_adopted_and_then_swept(tmp_path: Path, later: Any) -> None:
    (tmp_path / "x").write_bytes(b"left by a process that died")
    with store().stage(tmp_path / "x") as staged:
        store().put(staged)
    assert references.adopt(timezone.now()) >= 1
    assert references.sweep(timezone.now()) == 0
    assert references.sweep(later) >= 1
    assert not store().holds(staged.sha256, staged.size)


def test_deleting_a_version(tmp_path: Path) -> None:
    org = make.org()
    owner, developer, other = (make.member(org, role) for role in ("owner", "developer", "developer"))
    added(developer, tmp_path / "a.gguf")
    with pytest.raises(ApiError, match="version_not_yours"):
        delete_version(other, "tiny", 1)
    with pytest.raises(NotFound):
        delete_version(make.member(make.org(), "owner"), "tiny", 1)
    delete_version(developer, "tiny", 1)
    assert not ModelVersion.objects.for_org(org).exists()
    used = make.deployment(org, "bot").revision.version
    with pytest.raises(Conflict, match="model_in_use"):
        delete_version(owner, used.model.name, 1)


def test_a_version_of_old_revisions_stays_without_its_files(tmp_path: Path) -> None:
    org = make.org()
    owner = make.member(org, "owner")
    deployment = make.deployment(org, "bot")
    version = deployment.revision.version
    type(deployment).objects.for_org(org).filter(pk=deployment.pk).update(state="deleted")
    delete_version(owner, version.model.name, version.number)
    version.refresh_from_db()
    assert version.deleted_at is not None
    assert not ArtefactFile.objects.for_org(org).exists()
    assert make.client(owner.user).get(f"/api/v1/orgs/{org.slug}/models").json()["items"] == []
    with pytest.raises(NotFound):
        delete_version(owner, version.model.name, version.number)


@pytest.mark.parametrize("change", ["facts", "number", "source", "digest"])
def test_a_version_never_changes(tmp_path: Path, change: str) -> None:
    version = added(make.member(make.org(), "owner"), tmp_path / "a.gguf")
    value: Any = {"facts": {}, "number": 9, "source": "hub", "digest": "x"}[change]
    with pytest.raises(DatabaseError, match="never changes"), transaction.atomic():
        ModelVersion.objects.for_org(version.org_id).filter(pk=version.pk).update(**{change: value})
    with pytest.raises(DatabaseError, match="never changes"), transaction.atomic():
        ArtefactFile.objects.for_org(version.org_id).update(sha256="0" * 64)
    assert connection.is_usable()


def test_quotas(tmp_path: Path) -> None:
    org = make.org()
    owner = make.member(org, "owner")
    version = added(owner, tmp_path / "a.gguf")
    size = Artefact.objects.for_org(org).get(version=version).size
    operator = make.client(make.user(operator=True))
    url = f"/api/v1/operator/orgs/{org.slug}/storage-quota"
    assert operator.put(url, {"bytes": 2 * size - 1}, "application/json").json() == {
        "used": size,
        "coming": 0,
        "quota": 2 * size - 1,
    }
    assert make.client(owner.user).put(url, {"bytes": None}, "application/json").status_code == 403
    added(owner, tmp_path / "a.gguf", name="same")  # the same content under another name costs nothing
    assert references.used_bytes(org) == size
    with pytest.raises(QuotaExceeded) as refused:
        added(owner, tmp_path / "b.gguf", name="other", data=b"\1" * 256)
    assert refused.value.params == {"used": size, "asked": size, "quota": 2 * size - 1}
    make.model_import(org, size=size - 1)
    assert make.client(owner.user).get(f"/api/v1/orgs/{org.slug}/storage").json()["coming"] == size - 1
    with pytest.raises(QuotaExceeded):
        references.check_quota(org, 1)
    set_quota(org.slug, None)
    references.check_quota(org, 1 << 60)


def test_housekeeping(later: Any) -> None:
    org = make.org()
    stale, fresh = make.model_import(org), make.model_import(org)
    for run in (stale, fresh):
        file = run.files.get()
        staging.keep_part(run.pk, file.pk, 0, b"x")
        staging.scratch_of(run.pk).mkdir(parents=True)
    ModelImport.objects.for_org(org).filter(pk=stale.pk).update(check_at=timezone.now() - housekeeping.GIVEN_UP * 2)
    housekeeping.tidy(timezone.now())
    stale.refresh_from_db()
    assert (stale.state, stale.code) == ("failed", "upload_given_up")
    assert not staging.scratch_of(stale.pk).exists()
    assert staging.scratch_of(fresh.pk).exists()
    assert staging.read_part(fresh.pk, fresh.files.get().pk, 0) == b"x"
