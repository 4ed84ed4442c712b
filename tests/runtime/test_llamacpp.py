"""How llama.cpp is started and understood, without starting it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from berth_runtime.engines.llamacpp import LlamaCpp
from berth_runtime.failure import Failure
from berth_runtime.spec import EngineMetrics, LaunchSpec
from tests.runtime import llama_server
from tests.runtime.agents import SECRET, a_spec


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_LLAMA_SERVER", "bundled")


def value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


@pytest.mark.usefixtures("bundled")
@pytest.mark.parametrize(("context", "slots", "total"), [(512, 1, 512), (512, 4, 2048), (1000, 3, 3072), (1, 2, 512)])
def test_each_slot_gets_the_whole_context(tmp_path: Path, context: int, slots: int, total: int) -> None:
    argv = LlamaCpp().command(a_spec(tmp_path, context_length=context, slots=slots))
    assert value(argv, "--ctx-size") == str(total)
    assert value(argv, "--parallel") == str(slots)


@pytest.mark.usefixtures("bundled")
def test_the_secret_is_named_by_file_and_never_said(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    argv = LlamaCpp().command(spec)
    assert value(argv, "--api-key-file") == spec.secret_file
    assert SECRET not in " ".join(argv)


@pytest.mark.usefixtures("bundled")
def test_shards_are_given_by_the_first_and_must_have_their_names(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)

    def named(*names: str) -> LaunchSpec:
        files = tuple(msgspec.structs.replace(spec.files[0], path=f"/models/{name}") for name in names)
        return msgspec.structs.replace(spec, files=files)

    shards = named("m-00002-of-00002.gguf", "m-00001-of-00002.gguf")
    assert value(LlamaCpp().command(shards), "--model") == "/models/m-00001-of-00002.gguf"
    assert value(LlamaCpp().command(named("f00d")), "--model") == "/models/f00d"
    for wrong in (named("f00d", "beef"), named("m-00001-of-00003.gguf", "m-00002-of-00003.gguf")):
        with pytest.raises(Failure) as failure:
            LlamaCpp().command(wrong)
        assert failure.value.reason == "shards_unnamed"


@pytest.mark.threat("E1")
@pytest.mark.threat("E2")
def test_a_llama_server_gets_every_switch_that_closes_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = llama_server.make(tmp_path / "llama-server")
    monkeypatch.setenv("BERTH_LLAMA_SERVER", str(program))
    argv = LlamaCpp().command(a_spec(tmp_path))
    assert argv[0] == str(program)
    assert value(argv, "--cache-ram") == "0"
    assert value(argv, "--cors-origins") == ""
    assert {"--metrics", "--no-slots", "--no-ui", "--offline", "--jinja", "--no-cache-idle-slots"} <= set(argv)
    closed = {
        "--slots",
        "--props",
        "--rpc",
        "--tools",
        "--agent",
        "--embedding",
        "--slot-save-path",
        "--log-prompts-dir",
    }
    assert not closed & set(argv)
    assert LlamaCpp().version() == "llama-server 7777 (abcdef0)"


def test_switches_that_a_llama_server_does_not_know_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = "--metrics --no-slots --api-key-file --jinja --offline --cache-ram --threads-http"
    monkeypatch.setenv("BERTH_LLAMA_SERVER", str(llama_server.make(tmp_path / "llama-server", flags=flags)))
    argv = LlamaCpp().command(a_spec(tmp_path))
    assert "--no-ui" not in argv
    assert "--cache-ram" in argv


@pytest.mark.threat("E1")
def test_a_llama_server_that_cannot_keep_prompts_private_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = llama_server.make(tmp_path / "llama-server", flags=llama_server.FLAGS.replace("--cache-ram", ""))
    monkeypatch.setenv("BERTH_LLAMA_SERVER", str(program))
    with pytest.raises(Failure, match="--cache-ram") as failure:
        LlamaCpp().command(a_spec(tmp_path))
    assert failure.value.reason == "engine_too_old"


@pytest.mark.parametrize("path", ["llama-server", "/nonexistent/llama-server", "--version"])
def test_a_llama_server_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("BERTH_LLAMA_SERVER", path)
    with pytest.raises(Failure) as failure:
        LlamaCpp().command(a_spec(tmp_path))
    assert failure.value.reason == "engine_missing"


@pytest.mark.threat("M9")
@pytest.mark.usefixtures("bundled")
def test_nothing_of_our_environment_reaches_the_engine_but_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_PRELOAD", "LLAMA_ARG_TOOLS", "DATABASE_URL", "PYTHONPATH", "LLAMA_ARG_RPC"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    environment = LlamaCpp().environment(a_spec(tmp_path))
    assert set(environment) == {"PATH", "LANG", "HOME", "CUDA_VISIBLE_DEVICES"}


def test_metrics_are_read_by_their_names() -> None:
    text = """# HELP llamacpp:requests_processing Number of requests processing
llamacpp:requests_processing 3
llamacpp:requests_deferred 0
llamacpp:prompt_tokens_total{model="a b"} 41
llamacpp:tokens_predicted_total 1.5e3
llamacpp:prompt_seconds_total nan
broken
llamacpp:x
"""
    assert LlamaCpp().metrics(text) == EngineMetrics(running=3, queued=0, prompt_tokens=41, completion_tokens=1500)
    assert LlamaCpp().metrics("") == EngineMetrics()


@pytest.mark.parametrize(
    "answer", [b"", b"{}", b'{"usage": null}', b'{"usage": {"completion_tokens": "1"}}', b'{"error": {"message": "x"}}']
)
def test_only_a_real_token_counts_as_one(answer: bytes) -> None:
    assert LlamaCpp().tokens_in(answer) == 0
    assert LlamaCpp().tokens_in(b'{"usage": {"completion_tokens": 1}}') == 1


@pytest.mark.threat("E1")
@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"default_generation_settings": {"n_ctx": 256}}, "256 tokens"),
        ({"total_slots": 1}, "1 slots"),
        ({"endpoint_slots": True}, "control pages"),
        ({"endpoint_props": True}, "control pages"),
        ({"ui": True}, "control pages"),
    ],
)
def test_settings_that_are_not_as_asked_are_noticed(tmp_path: Path, change: dict[str, object], word: str) -> None:
    spec = a_spec(tmp_path)
    good = {"default_generation_settings": {"n_ctx": 512}, "total_slots": 2, "endpoint_slots": False}
    assert LlamaCpp().difference(spec, json.dumps(good).encode()) is None
    difference = LlamaCpp().difference(spec, json.dumps(good | change).encode())
    assert difference and word in difference
    assert LlamaCpp().difference(spec, b"?") is not None
