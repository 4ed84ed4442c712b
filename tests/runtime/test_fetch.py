"""Files come whole, whatever breaks on the way; the cache holds what is used and lets the oldest go."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from berth_runtime import fetch, ranges
from berth_runtime.cache import Cache
from berth_runtime.failure import Failure
from berth_runtime.fetch import Fetcher
from berth_runtime.spec import LaunchSpec, ModelFile, Phase
from berth_runtime.specfile import BadSpec, load_spec
from tests.runtime.agents import Agent, a_spec, environment, eventually, file_of, model_file
from tests.runtime.object_store import Store

SIZE = 1_000_003


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of 64 KiB, and no time lost between two attempts."""
    monkeypatch.setattr(fetch, "RANGE", 1 << 16)
    monkeypatch.setattr(fetch, "_BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(ranges, "_WHOLE", 1 << 16)


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store({"/model": os.urandom(SIZE)})
    yield store
    store.close()


def wanted(store: Store, path: str = "/model", **changes: object) -> ModelFile:
    data = store.objects[path]
    file = ModelFile("", "weights", len(data), hashlib.sha256(data).hexdigest(), name="m.bin", url=store.url(path))
    return msgspec.structs.replace(file, **changes)


def spec_for(folder: Path, *files: ModelFile, **changes: object) -> LaunchSpec:
    return a_spec(folder, files=files or (model_file(),), cache_dir=str(folder / "cache"), **changes)


def bring(folder: Path, *files: ModelFile, **changes: object) -> tuple[list[tuple[int, int]], tuple[ModelFile, ...]]:
    seen: list[tuple[int, int]] = []
    fetcher = Fetcher(spec_for(folder, *files, **changes), lambda done, total: seen.append((done, total)))
    return seen, fetcher.bring(files)


def test_a_file_comes_in_ranges_and_is_kept_by_its_digest(store: Store, tmp_path: Path) -> None:
    seen, (file,) = bring(tmp_path, wanted(store))
    assert Path(file.path).read_bytes() == store.objects["/model"]
    assert file.url is None and file.name == "m.bin"
    assert Path(file.path) == tmp_path / "cache" / file.sha256
    assert Path(file.path).stat().st_mode & 0o077 == 0
    assert len(store.served) == -(-SIZE // (1 << 16))
    assert seen[-1] == (SIZE, SIZE)
    assert sorted(done for done, _ in seen) == [done for done, _ in seen]
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == ["", ".lock"]


def test_what_is_there_is_not_fetched_again_and_two_names_are_one_file(store: Store, tmp_path: Path) -> None:
    bring(tmp_path, wanted(store))
    store.served.clear()
    _, files = bring(tmp_path, wanted(store), wanted(store, name="other.bin"))
    assert not store.served
    assert files[0].path == files[1].path


def test_a_range_that_breaks_off_goes_on_where_it_was(store: Store, tmp_path: Path) -> None:
    broken: set[int] = set()

    def once(_path: str, first: int) -> int | None:
        if first % (1 << 16) == 0 and first not in broken:
            broken.add(first)
            return 1000
        return None

    store.before = once
    _, (file,) = bring(tmp_path, wanted(store))
    assert Path(file.path).read_bytes() == store.objects["/model"]
    assert store.bytes == SIZE  # nothing came twice


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_store_in_trouble_is_asked_again(store: Store, tmp_path: Path, status: int) -> None:
    store.before = lambda _path, first: status if store.served[first] < 3 else None
    _, (file,) = bring(tmp_path, wanted(store))
    assert Path(file.path).read_bytes() == store.objects["/model"]


@pytest.mark.parametrize(
    ("status", "reason", "word"),
    [
        (403, "fetch_refused", "grant"),
        (401, "fetch_refused", "grant"),
        (404, "fetch_refused", "does not have"),
        (302, "fetch_refused", "does not have"),
        (503, "fetch_failed", "does not answer"),
    ],
)
def test_a_store_that_refuses_is_said_without_the_address(
    store: Store, tmp_path: Path, status: int, reason: str, word: str
) -> None:
    store.before = lambda _path, _first: status
    with pytest.raises(Failure) as failure:
        bring(tmp_path, wanted(store))
    assert failure.value.reason == reason
    assert word in failure.value.message
    assert "Signature" not in failure.value.message and "127.0.0.1" not in failure.value.message


def test_a_store_without_ranges_gives_small_files_only(store: Store, tmp_path: Path) -> None:
    store.ranges = False
    store.objects["/small"] = b"{}" * 700
    _, (file,) = bring(tmp_path, wanted(store, "/small"))
    assert Path(file.path).read_bytes() == store.objects["/small"]
    with pytest.raises(Failure, match="parts"):
        bring(tmp_path, wanted(store))


@pytest.mark.threat("M7")
def test_another_content_than_was_checked_in_is_never_kept(store: Store, tmp_path: Path) -> None:
    good = wanted(store)
    store.objects["/model"] = store.objects["/model"][:-1] + bytes([store.objects["/model"][-1] ^ 1])
    with pytest.raises(Failure) as failure:
        bring(tmp_path, good)
    assert failure.value.reason == "checksum_mismatch"
    assert not (tmp_path / "cache" / good.sha256).exists()
    assert not (tmp_path / "cache" / f"{good.sha256}.part").exists()


@pytest.mark.threat("M7")
def test_a_damaged_beginning_is_fetched_anew(store: Store, tmp_path: Path) -> None:
    """A part that was left behind by a crash, with marks that are not true."""
    file = wanted(store)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / f"{file.sha256}.part").write_bytes(b"\0" * SIZE)
    (cache / f"{file.sha256}.done").write_bytes(b"1" * -(-SIZE // (1 << 16)))
    _, (kept,) = bring(tmp_path, file)
    assert Path(kept.path).read_bytes() == store.objects["/model"]


_FETCH = """
import sys, msgspec, time
from pathlib import Path
from berth_runtime import fetch
from berth_runtime.spec import LaunchSpec
fetch.RANGE = 1 << 16
spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=LaunchSpec)
fetch.Fetcher(spec, lambda done, total: time.sleep(0.002), connections=2).bring(spec.files)
"""


def test_killed_at_any_moment_it_goes_on_to_the_same_file(store: Store, tmp_path: Path) -> None:
    spec = spec_for(tmp_path, wanted(store))
    (tmp_path / "spec.json").write_bytes(msgspec.json.encode(spec))
    for kill_at in (1, 4, 9, 12):
        process = subprocess.Popen([sys.executable, "-c", _FETCH, str(tmp_path / "spec.json")], env=environment())
        eventually(
            lambda at=kill_at, process=process: sum(store.served.values()) >= at or process.poll() is not None,
            "it fetches",
        )
        process.kill()
        process.wait()
    before = store.bytes
    marks = tmp_path / "cache" / f"{spec.files[0].sha256}.done"
    kept = marks.read_bytes().count(b"1") if marks.exists() else 0
    _, (file,) = bring(tmp_path, spec.files[0])
    assert Path(file.path).read_bytes() == store.objects["/model"]
    assert store.bytes - before <= SIZE - kept * (1 << 16) + (1 << 16)  # what was there is not fetched again


def test_two_agents_fetch_a_file_once(store: Store, tmp_path: Path) -> None:
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(Path(bring(tmp_path, wanted(store))[1][0].path)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1
    assert set(store.served.values()) == {1}


def test_the_oldest_go_when_room_is_needed_and_what_is_used_stays(store: Store, tmp_path: Path) -> None:
    limit = 3 * (1 << 20)
    root = tmp_path / "cache"
    files = []
    for number in range(3):
        store.objects[f"/{number}"] = os.urandom(1 << 20)
        files.append(wanted(store, f"/{number}"))
    for number, file in enumerate(files):  # each by a process of its own, so that nothing here holds it
        spec = spec_for(tmp_path, file, cache_bytes=limit)
        (tmp_path / "spec.json").write_bytes(msgspec.json.encode(spec))
        subprocess.run([sys.executable, "-c", _FETCH, str(tmp_path / "spec.json")], env=environment(), check=True)
        os.utime(root / file.sha256, (1000 + number, 1000 + number))
    holder = Cache(root, limit)
    assert holder.find(files[0].sha256, 1 << 20)  # the oldest, but in use
    os.utime(root / files[0].sha256, (900, 900))
    bring(tmp_path, wanted(store), cache_bytes=limit)
    left = {path.name for path in root.iterdir() if not path.suffix}
    assert left == {files[0].sha256, files[2].sha256, wanted(store).sha256}


def test_a_cache_in_which_all_is_used_says_so(store: Store, tmp_path: Path) -> None:
    bring(tmp_path, wanted(store), cache_bytes=1 << 20)
    store.objects["/more"] = os.urandom(SIZE)
    holder = Cache(tmp_path / "cache", 1 << 20)
    assert holder.find(wanted(store).sha256, SIZE)
    with pytest.raises(Failure, match="in use") as failure:
        bring(tmp_path, wanted(store, "/more"), cache_bytes=1 << 20)
    assert failure.value.reason == "disk_full"


@pytest.mark.threat("M9")
@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://x/y", "http://", "http://u:p@h/x", "http://h/a b", "x", "http://h:0/"]
)
def test_an_address_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    spec = a_spec(tmp_path, files=(ModelFile("", "weights", 1, "0" * 64, url=url),))
    (tmp_path / "spec.json").write_bytes(msgspec.json.encode(spec))
    with pytest.raises(BadSpec, match="url"):
        load_spec(tmp_path / "spec.json")


@pytest.mark.parametrize("name", ["../x", "a/b", "-m", ".", ".hidden", "a b", "x" * 129])
def test_a_name_that_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    spec = a_spec(tmp_path, files=(msgspec.structs.replace(file_of(Path(__file__)), name=name),))
    (tmp_path / "spec.json").write_bytes(msgspec.json.encode(spec))
    with pytest.raises(BadSpec, match="bare name"):
        load_spec(tmp_path / "spec.json")


def test_a_replica_fetches_its_model_and_serves_it(tmp_path: Path) -> None:
    local = model_file()
    store = Store({"/weights": Path(local.path).read_bytes()})
    file = msgspec.structs.replace(local, path="", name="model.gguf", url=store.url("/weights"))
    with Agent(a_spec(tmp_path, files=(file,))) as agent:
        status = agent.ready()
        assert [timing.phase for timing in status.phases][:3] == [Phase.FETCHING, Phase.VERIFYING, Phase.LOADING]
        assert (status.phases[0].done, status.phases[0].total) == (local.size, local.size)
        for written in Path(agent.spec.state_dir).rglob("*.json*"):
            assert b"X-Signature" not in written.read_bytes()
    store.close()
