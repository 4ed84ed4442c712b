"""The store keeps what its digest says, under no other name, and nothing else."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from berth.catalog.errors import Refused
from berth.catalog.store import Store, StoreFull, digest_of


@pytest.fixture
def kept(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_file_is_found_by_its_digest_and_cannot_be_written(kept: Store, tmp_path: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(b"weights")
    with kept.stage(source) as staged:
        path = kept.commit(staged)
    digest = hashlib.sha256(b"weights").hexdigest()
    assert (staged.sha256, staged.size) == (digest, 7)
    assert path == tmp_path / "store" / "sha256" / digest[:2] / digest
    assert path.read_bytes() == b"weights"
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert kept.holds(digest, 7)
    assert kept.verify(digest)


@pytest.mark.threat("M7")
def test_later_changes_of_the_source_do_not_reach_the_store(kept: Store, tmp_path: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(b"weights")
    with kept.stage(source) as staged:
        path = kept.commit(staged)
    with source.open("r+b") as file:
        file.write(b"X")
    assert path.read_bytes() == b"weights"
    assert path.stat().st_nlink == 1


@pytest.mark.threat("M7")
def test_one_flipped_byte_is_found_and_put_right_by_the_next_import(kept: Store, tmp_path: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(b"weights")
    with kept.stage(source) as staged:
        path = kept.commit(staged)
    path.chmod(0o600)
    path.write_bytes(b"weighty")
    assert not kept.verify(staged.sha256)
    with kept.stage(source) as again:
        kept.commit(again)
    assert kept.verify(staged.sha256)


def test_what_is_not_committed_leaves_nothing(kept: Store, tmp_path: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(b"weights")
    with pytest.raises(KeyboardInterrupt), kept.stage(source):
        raise KeyboardInterrupt
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


@pytest.mark.threat("M6")
def test_links_devices_and_folders_are_not_taken_in(kept: Store, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"top")
    (tmp_path / "link.gguf").symlink_to(secret)
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "folder.gguf").mkdir()
    for name in ("link.gguf", "pipe.gguf", "folder.gguf", "absent.gguf"):
        with pytest.raises(Refused), kept.stage(tmp_path / name):
            pass
        with pytest.raises(Refused):
            digest_of(tmp_path / name)


@pytest.mark.threat("M6")
@pytest.mark.parametrize("name", ["../" * 20 + "etc/passwd", "", "AB" * 32, "ab", "a" * 63 + "\n"])
def test_only_digests_become_paths(kept: Store, name: str) -> None:
    with pytest.raises(ValueError, match="digest"):
        kept.path(name)


def test_a_full_disk_is_told_as_such(kept: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(b"weights")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("berth.catalog.store.os.write", full)
    monkeypatch.setattr("berth.catalog.store.fcntl.ioctl", full)
    with pytest.raises(StoreFull), kept.stage(source):
        pass
    monkeypatch.undo()
    assert list((tmp_path / "store" / "incoming").iterdir()) == []
