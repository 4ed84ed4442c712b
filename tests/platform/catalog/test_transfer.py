"""Fetching a file: resumed at any byte, in ranges where the source has them, never another content under the same name."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from berth.catalog.files import Staged
from berth.catalog.intake.refused import Refused
from berth.catalog.sources.source import Listing, Opened, RemoteFile, Source, SourceTrouble
from berth.catalog.sources.url import UrlSource
from berth.catalog.transfer import Stopped, Watch, fetch_file
from tests.platform.catalog.fake_hub import Hub

SEGMENT = 256 << 10
CONTENT = random.Random(7).randbytes(4 * SEGMENT + 12_345)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def source(hub: Hub) -> UrlSource:
    hub.plain["/x.gguf"] = CONTENT
    return UrlSource([f"http://{hub.storage_place}/x.gguf"])


def fetch(source: Source, folder: Path, watch: Watch | None = None, file: RemoteFile | None = None) -> Staged:
    file = file or source.listing().files[0]
    return fetch_file(source, file, folder / "files" / file.name, watch or Watch(), segment=SEGMENT)


def test_whole_and_once(hub: Hub, source: UrlSource, tmp_path: Path) -> None:
    watch = Watch()
    staged = fetch(source, tmp_path, watch)
    assert (staged.sha256, staged.size, watch.total()) == (SHA256, len(CONTENT), len(CONTENT))
    assert staged.path.read_bytes() == CONTENT
    asked = len(hub.asked)
    assert fetch(source, tmp_path, file=source.listing().files[0]) == staged
    assert len(hub.asked) == asked + 1  # the listing; the file is there


def test_ranges_side_by_side(hub: Hub, source: UrlSource, tmp_path: Path) -> None:
    fetch(source, tmp_path)
    ranges = sorted(headers["range"] for _, _, headers in hub.asked[1:])
    assert len(ranges) == 5
    assert f"bytes={SEGMENT}-{2 * SEGMENT - 1}" in ranges


def test_a_source_without_ranges_begins_again(hub: Hub, source: UrlSource, tmp_path: Path) -> None:
    hub.behaviour.ranges = False
    assert fetch(source, tmp_path).sha256 == SHA256


def test_a_dropped_connection_costs_what_was_not_on_the_disk(hub: Hub, source: UrlSource, tmp_path: Path) -> None:
    file = source.listing().files[0]
    hub.behaviour.cut_after, hub.behaviour.cuts = 100_000, 3
    tries = 0
    while True:
        try:
            staged = fetch(source, tmp_path, file=file)
            break
        except SourceTrouble:
            tries += 1
    assert 1 <= tries <= 3
    assert staged.sha256 == SHA256
    assert hub.served < 2 * len(CONTENT)


def test_a_wrong_checksum_is_refused_and_nothing_stays(hub: Hub, source: UrlSource, tmp_path: Path) -> None:
    hub.behaviour.wrong = True
    file = source.listing().files[0]
    promised = RemoteFile(file.name, file.location, file.size, SHA256, file.tag)
    with pytest.raises(Refused) as refused:
        fetch(source, tmp_path, file=promised)
    assert (refused.value.code, refused.value.file) == ("checksum_mismatch", "x.gguf")
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


@pytest.mark.threat("M7")
def test_another_content_under_the_same_address_is_noticed(hub: Hub, source: UrlSource, tmp_path: Path) -> None:
    file = source.listing().files[0]
    watch = Watch()
    watch.stopped.set()
    with pytest.raises(Stopped):
        fetch(source, tmp_path, watch, file)
    hub.plain["/x.gguf"] = CONTENT[::-1]
    with pytest.raises(SourceTrouble, match="source_changed"):
        fetch(source, tmp_path, file=file)
    assert fetch(source, tmp_path).sha256 == hashlib.sha256(CONTENT[::-1]).hexdigest()


@pytest.mark.parametrize(
    "journal",
    [
        b"",
        b"{",
        b"[]",
        b'{"size":1}',
        json.dumps({"size": len(CONTENT), "tag": "x", "segment": 1, "done": [1]}).encode(),
    ],
)
def test_a_journal_that_says_nothing_costs_a_new_beginning(source: UrlSource, tmp_path: Path, journal: bytes) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "x.gguf.journal").write_bytes(journal)
    (state / "x.gguf.part").write_bytes(b"rubbish")
    assert fetch(source, tmp_path).sha256 == SHA256


class Endless(Source):
    """Sends more than it says."""

    def listing(self) -> Listing:
        return Listing((RemoteFile("x", "x", 10),), "")

    @contextmanager
    def open(self, file: RemoteFile, begin: int, end: int | None) -> Iterator[Opened]:
        yield Opened(begin, 10, "", iter([b"0123456789abcdef"] * 1000))


def test_a_source_that_sends_too_much_is_cut_off(tmp_path: Path) -> None:
    assert fetch(Endless(), tmp_path).size == 10


def test_killed_at_twenty_random_moments_it_ends_with_the_same_checksum(
    hub: Hub, source: UrlSource, tmp_path: Path
) -> None:
    """A process of its own each time, ended by SIGKILL; what it left is all that the next one has."""
    hub.behaviour.pause, hub.behaviour.chunk = 0.004, 16 << 10
    file = source.listing().files[0]
    moments, kills = random.Random(20), 0
    while kills < 20:
        child = os.fork()
        if child == 0:
            try:
                fetch(source, tmp_path, file=file)
            finally:
                os._exit(0)
        time.sleep(moments.uniform(0.005, 0.15))
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        kills += os.WIFSIGNALED(status)
        if not os.WIFSIGNALED(status):  # it was done before the kill: what it left is judged, and it begins anew
            assert fetch(source, tmp_path, file=file).sha256 == SHA256
            for each in tmp_path.rglob("*"):
                if each.is_file():
                    each.unlink()
    hub.behaviour.pause = 0
    assert fetch(source, tmp_path, file=file).sha256 == SHA256
