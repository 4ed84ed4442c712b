"""One contract, two stores: a folder, and a bucket of a real S3 service that checks signatures."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import urllib.error
import urllib.request
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from berth.catalog.errors import Refused, StoreUnavailable
from berth.catalog.files import drop_drafts
from berth.catalog.folder_store import FolderStore
from berth.catalog.s3_store import Keys, S3Store
from berth.catalog.store import Store, StoreFull, digest_of
from tests.seaweed import BUCKET, KEY_ID, SECRET, Seaweed, client

PART = 5 << 20  # the least that S3 takes for a part that is not the last


@pytest.fixture(params=["folder", "s3"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return FolderStore(tmp_path / "store")
    return s3_store(request.getfixturevalue("s3"), tmp_path)


def s3_store(service: Seaweed, tmp_path: Path, secret: str = SECRET) -> S3Store:
    return S3Store(
        BUCKET,
        prefix=f"{uuid.uuid4().hex}/",
        endpoint=service.endpoint,
        keys=Keys(KEY_ID, secret),
        incoming=tmp_path / "incoming",
        part=PART,
    )


def put(store: Store, tmp_path: Path, content: bytes) -> str:
    source = tmp_path / "source"
    source.write_bytes(content)
    with store.stage(source) as staged:
        store.put(staged)
    return hashlib.sha256(content).hexdigest()


def damage(store: Store, digest: str, content: bytes, service: Any) -> None:
    """Writes past the store, as a broken disk would."""
    if isinstance(store, FolderStore):
        store.path(digest).chmod(0o600)
        store.path(digest).write_bytes(content)
    elif isinstance(store, S3Store):
        service.put_object(Bucket=BUCKET, Key=store.key(digest), Body=content)


class TestContract:
    def test_what_is_put_is_held_under_its_digest(self, kept: Store, tmp_path: Path) -> None:
        digest = put(kept, tmp_path, b"weights")
        assert digest == hashlib.sha256(b"weights").hexdigest()
        assert kept.holds(digest, 7)
        assert not kept.holds(digest, 8)
        assert not kept.holds("0" * 64, 7)
        assert kept.verify(digest)
        assert not kept.verify("0" * 64)
        assert [(each.sha256, each.size) for each in kept.contents()] == [(digest, 7)]

    def test_ranges(self, kept: Store, tmp_path: Path) -> None:
        digest = put(kept, tmp_path, b"0123456789")
        whole = [(0, None), (3, None), (3, 7), (9, 10), (0, 10), (4, 4), (10, None)]
        assert [b"".join(kept.read(digest, *each)) for each in whole] == [
            b"0123456789", b"3456789", b"3456", b"9", b"0123456789", b"", b"",
        ]  # fmt: skip
        with pytest.raises(FileNotFoundError):
            b"".join(kept.read("0" * 64))

    def test_contents_of_several_parts(self, kept: Store, tmp_path: Path) -> None:
        content = os.urandom(1024) * (2 * PART // 1024) + b"and a rest"
        digest = put(kept, tmp_path, content)
        assert kept.holds(digest, len(content))
        assert kept.verify(digest)
        assert b"".join(kept.read(digest, PART - 2, PART + 2)) == content[PART - 2 : PART + 2]

    def test_putting_twice_and_removing_twice_is_harmless(self, kept: Store, tmp_path: Path) -> None:
        digest = put(kept, tmp_path, b"weights")
        assert put(kept, tmp_path, b"weights") == digest
        kept.remove(digest)
        kept.remove(digest)
        assert not kept.holds(digest, 7)
        assert list(kept.contents()) == []
        assert put(kept, tmp_path, b"weights") == digest
        assert kept.verify(digest)

    @pytest.mark.threat("M7")
    def test_later_changes_of_the_source_do_not_reach_the_store(self, kept: Store, tmp_path: Path) -> None:
        digest = put(kept, tmp_path, b"weights")
        with (tmp_path / "source").open("r+b") as file:
            file.write(b"X")
        assert b"".join(kept.read(digest)) == b"weights"

    @pytest.mark.threat("M7")
    def test_one_flipped_byte_is_found_and_put_right_by_the_next_put(
        self, kept: Store, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        digest = put(kept, tmp_path, b"weights")
        service = client(request.getfixturevalue("s3")) if isinstance(kept, S3Store) else None
        damage(kept, digest, b"weighty", service)
        assert kept.holds(digest, 7)
        assert not kept.verify(digest)
        put(kept, tmp_path, b"weights")
        assert kept.verify(digest)

    def test_what_is_not_put_leaves_nothing(self, kept: Store, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"weights")
        with pytest.raises(KeyboardInterrupt), kept.stage(source):
            raise KeyboardInterrupt
        assert list(kept.contents()) == []
        assert list(kept.incoming.iterdir()) == []

    @pytest.mark.threat("M6")
    def test_links_devices_and_folders_are_not_taken_in(self, kept: Store, tmp_path: Path) -> None:
        (tmp_path / "secret").write_bytes(b"top")
        (tmp_path / "link.gguf").symlink_to(tmp_path / "secret")
        os.mkfifo(tmp_path / "pipe.gguf")
        (tmp_path / "folder.gguf").mkdir()
        for name in ("link.gguf", "pipe.gguf", "folder.gguf", "absent.gguf"):
            with pytest.raises(Refused), kept.stage(tmp_path / name):
                pass
            with pytest.raises(Refused):
                digest_of(tmp_path / name)

    @pytest.mark.threat("M6")
    @pytest.mark.parametrize("name", ["../" * 20 + "etc/passwd", "", "AB" * 32, "ab", "a" * 63 + "\n"])
    def test_only_digests_are_names(self, kept: Store, name: str) -> None:
        for ask in (kept.local_path, kept.grant, kept.remove, kept.verify):
            with pytest.raises(ValueError, match="digest"):
                ask(name)

    def test_an_engine_gets_a_path_or_a_grant(self, kept: Store, tmp_path: Path) -> None:
        digest = put(kept, tmp_path, b"weights")
        path, grant = kept.local_path(digest), kept.grant(digest)
        assert (path is None) != (grant is None)
        if path is not None:
            assert path.read_bytes() == b"weights"
            assert stat.S_IMODE(path.stat().st_mode) == 0o400
            assert path.stat().st_nlink == 1
        if grant is not None:
            with urllib.request.urlopen(grant, timeout=30) as answer:
                assert answer.read() == b"weights"


@pytest.mark.threat("D4")
def test_a_grant_is_for_one_object_one_method_and_its_time(s3: Seaweed, tmp_path: Path) -> None:
    store = s3_store(s3, tmp_path)
    digest, other = put(store, tmp_path, b"weights"), put(store, tmp_path, b"others")
    grant = store.grant(digest)
    late = store.grant(digest, seconds=-60)

    def status(url: str, method: str = "GET") -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert status(grant) == 200
    assert status(grant.replace(digest, other).replace(f"/{digest[:2]}/", f"/{other[:2]}/")) == 403
    assert status(grant, "PUT") == 403
    assert status(grant, "DELETE") == 403
    assert status(late) in {400, 403}
    assert status(grant.split("?")[0]) == 403


def test_a_wrong_key_is_refused_and_told_without_it(s3: Seaweed, tmp_path: Path) -> None:
    store = s3_store(s3, tmp_path, secret="wrong")
    with pytest.raises(StoreUnavailable) as told:
        store.holds("0" * 64, 1)
    assert told.value.status == 503
    assert KEY_ID not in told.value.message and "wrong" not in told.value.message


def test_an_absent_service_is_told_as_such(tmp_path: Path) -> None:
    store = S3Store(BUCKET, endpoint="http://127.0.0.1:9", keys=Keys("a", "b"), incoming=tmp_path)
    store._client.meta.config.retries["total_max_attempts"] = 1
    with pytest.raises(StoreUnavailable):
        store.holds("0" * 64, 1)


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path / "store")
    (tmp_path / "a.gguf").write_bytes(b"weights")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("berth.catalog.files.os.write", full)
    monkeypatch.setattr("berth.catalog.files.fcntl.ioctl", full)
    with pytest.raises(StoreFull), store.stage(tmp_path / "a.gguf"):
        pass
    monkeypatch.undo()
    assert list((tmp_path / "store" / "incoming").iterdir()) == []


def test_a_draft_whose_process_died_is_dropped_and_no_other(tmp_path: Path) -> None:
    store, source = FolderStore(tmp_path / "store"), tmp_path / "source"
    source.write_bytes(b"weights")
    child = os.fork()
    if child == 0:
        with store.stage(source):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    later, earlier = datetime.now(UTC) + timedelta(hours=1), datetime.now(UTC) - timedelta(hours=1)
    with store.stage(source) as staged:
        assert len(list(store.incoming.iterdir())) == 2
        assert drop_drafts(store.incoming, earlier) == 0
        assert drop_drafts(store.incoming, later) == 1
        assert staged.path.exists()
        store.put(staged)
    assert drop_drafts(store.incoming, later) == 0
    assert store.verify(staged.sha256)
