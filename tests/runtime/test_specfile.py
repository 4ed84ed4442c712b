"""A spec that could mean something else to a command line is refused before anything runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth_runtime.engines.catalogue import engine_named
from berth_runtime.spec import LaunchSpec
from berth_runtime.specfile import BadSpec, load_spec
from tests.runtime.agents import a_spec, environment, file_of

HOSTILE = (
    "--trust-remote-code",
    "-m",
    "$(id)",
    "a\nb",
    "LD_PRELOAD=x",
    "a b",
    "",
    "a,b",
    "../x",
    "a;b",
    "`id`",
    "a\0b",
)


def tiny_spec(folder: Path, **changes: Any) -> LaunchSpec:
    weights = folder / "model.gguf"
    weights.write_bytes(b"GGUF")
    return a_spec(folder, files=(file_of(weights),), **changes)


def stored(folder: Path, spec: LaunchSpec) -> Path:
    file = folder / "spec.json"
    file.write_bytes(msgspec.json.encode(spec))
    return file


def test_a_good_spec_is_read_as_written(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    assert load_spec(stored(tmp_path, spec)) == spec


@pytest.mark.threat("M9")
@pytest.mark.parametrize("field", ["replica", "org_id", "deployment_id", "engine", "model_alias", "host"])
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_refused(tmp_path: Path, field: str, text: str) -> None:
    with pytest.raises(BadSpec):
        load_spec(stored(tmp_path, tiny_spec(tmp_path, **{field: text})))


@pytest.mark.threat("M9")
@pytest.mark.parametrize("field", ["secret_file", "state_dir", "lifeline"])
@pytest.mark.parametrize("text", ["", "relative", "--x", "/a/../etc/passwd", "/a\nb", "/a\0b"])
def test_paths_that_are_not_plain_and_absolute_are_refused(tmp_path: Path, field: str, text: str) -> None:
    with pytest.raises(BadSpec):
        load_spec(stored(tmp_path, tiny_spec(tmp_path, **{field: text})))


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"revision": 0},
        {"context_length": 0},
        {"slots": 0},
        {"slots": 10**9},
        {"threads": 0},
        {"port": 65536},
        {"memory_limit": 5},
        {"start_deadline_seconds": 0},
        {"drain_seconds": -1},
    ],
)
def test_numbers_out_of_range_are_refused(tmp_path: Path, change: dict[str, int]) -> None:
    with pytest.raises(BadSpec, match=next(iter(change))):
        load_spec(stored(tmp_path, tiny_spec(tmp_path, **change)))


@pytest.mark.parametrize("change", [{"path": "model"}, {"size": -1}, {"sha256": "A" * 64}, {"sha256": "0" * 63}])
def test_files_that_cannot_be_checked_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    spec = tiny_spec(tmp_path)
    files = (msgspec.structs.replace(spec.files[0], **change),)
    with pytest.raises(BadSpec, match="each file's"):
        load_spec(stored(tmp_path, msgspec.structs.replace(spec, files=files)))


def test_there_must_be_weights(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="weights"):
        load_spec(stored(tmp_path, msgspec.structs.replace(tiny_spec(tmp_path), files=())))


@pytest.mark.threat("M9")
@given(text=st.text(max_size=40))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_accepted_alias_can_be_read_as_an_option(tmp_path: Path, text: str) -> None:
    spec = tiny_spec(tmp_path, model_alias=text)
    file = stored(tmp_path, msgspec.structs.replace(spec))
    try:
        accepted = load_spec(file)
    except BadSpec:
        return
    engine = engine_named("llamacpp")
    assert engine
    argv = engine.command(accepted)
    assert argv[argv.index("--alias") + 1] == text
    assert not text.startswith("-")
    assert "," not in text
    assert text.isprintable()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 1}', "[" * 100_000, '{"x": "' + "y" * (1 << 20) + '"}', "null"]
)
def test_the_command_says_one_sentence_and_ends_with_2(tmp_path: Path, content: str) -> None:
    file = tmp_path / "spec.json"
    file.write_text(content)
    done = _serve(file)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert done.stderr.endswith(b".\n")
    assert b"Traceback" not in done.stderr


def test_unknown_fields_and_unknown_engines_are_named(tmp_path: Path) -> None:
    known = json.loads(stored(tmp_path, tiny_spec(tmp_path)).read_text())
    (tmp_path / "a.json").write_text(json.dumps(known | {"extra_arguments": ["--rpc"]}))
    (tmp_path / "b.json").write_text(json.dumps(known | {"engine": "warp"}))
    for name, word in (
        ("a.json", b"extra_arguments"),
        ("b.json", b"no engine called warp"),
        ("none.json", b"cannot be read"),
    ):
        done = _serve(tmp_path / name)
        assert done.returncode == 2
        assert word in done.stderr


def _serve(file: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "berth_runtime", "serve", str(file)]
    return subprocess.run(command, env=environment(), capture_output=True, check=False)
