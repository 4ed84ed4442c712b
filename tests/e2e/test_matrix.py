"""`make matrix`: every artefact that can be made of the sample model, each on its engine. A row that fails keeps no other from being tried.

The first two rows are in every test run. The others need the converters (`make converters`), and those that vLLM serves also a vLLM:
BERTH_VLLM, one on the PATH, or `make engines`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.catalog.client import Session, upload, watch
from berth.host.child import free_port
from tests.e2e.conftest import ROOT, Platform
from tests.e2e.matrix import HEAD, MODEL, Row, Seen, converted, served, weigh
from tests.runtime import engine_programs
from tests.runtime.lora_files import peft_adapter

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(7200)]

QUICK = [Row("gguf", "Q8_0", "llamacpp"), Row("gguf", "Q4_K_M", "llamacpp")]
# In the order in which each can be made of what is there before it: the 16 bits are the most exact source of all others.
FULL = [
    Row("safetensors", "BF16", "vllm"),
    *QUICK,
    Row("safetensors", "FP8", "vllm"),
    Row("safetensors", "INT8 W8A8", "vllm"),
    Row("safetensors", "INT4 W4A16", "vllm"),
    Row("safetensors", "AWQ-INT4", "vllm"),
    Row("onnx", "INT4 W4A16", "onnxruntime"),
]
PATIENCE = 3000  # seconds: for one conversion, and for one engine to be ready
_TOLD: list[Seen] = []


def names(row: Row) -> str:
    return row.name


@pytest.fixture(scope="module")
def spacious(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform of its own: engines of other kinds take the memory that others would miss."""
    if not (ROOT / ".venv-converters" / "bin" / "python").exists():
        pytest.skip("the converters are not installed: make converters")
    folder = tmp_path_factory.mktemp("matrix")
    started = Platform(folder / "berth", (free_port(), free_port()))
    if vllm := _vllm(folder):
        started.environment["BERTH_VLLM"] = vllm
    try:
        started.start()
        yield started
    finally:
        if started._process is not None and started._process.poll() is None:
            started.end(signal.SIGINT)
        print(HEAD, *(seen.line() for seen in _TOLD), sep="\n")


def _vllm(folder: Path) -> str | None:
    """`TEST_VLLM` is what `make` was given as BERTH_VLLM: tests see nobody's own settings (tests/settings.py)."""
    found = os.environ.get("TEST_VLLM") or shutil.which("vllm")
    if found or not engine_programs.has("vllm"):
        return found
    return str(engine_programs.vllm(folder / "vllm"))


@pytest.mark.parametrize("row", QUICK, ids=names)
def test_what_needs_no_other_packages(platform_up: Platform, row: Row) -> None:
    seen = Seen(row, converted(platform_up, row))
    assert seen.made["quality"]["divergence"] < 0.12
    if row.quantization == "Q4_K_M":
        assert {each["given"] for each in seen.made["fallbacks"]} == {"Q5_0", "Q8_0"}
    served(platform_up, seen)


@pytest.mark.slow
@pytest.mark.parametrize("row", FULL, ids=names)
def test_every_artefact_on_its_engine(spacious: Platform, row: Row) -> None:
    seen = Seen(row, note="not made")
    _TOLD.append(seen)
    seen.made = converted(spacious, row, seconds=PATIENCE)
    seen.mark()
    weigh(spacious, seen)
    seen.note = "made, not served"
    if row.engine == "vllm" and "BERTH_VLLM" not in spacious.environment:
        pytest.skip("no vLLM: name one in BERTH_VLLM, or make engines")
    if row.engine == "onnxruntime" and importlib.util.find_spec("onnxruntime_genai") is None:
        pytest.skip("no ONNX Runtime: make onnx")
    served(spacious, seen, seconds=PATIENCE)
    seen.mark()
    print("\n" + seen.line())


@pytest.mark.slow
def test_an_adapter_becomes_a_model_of_its_own(spacious: Platform, tmp_path: Path) -> None:
    """Imported, merged into its base, made a GGUF file, served. It is a slight one, so that the answer stays."""
    name = "merged-adapter"
    _import(spacious, name, peft_adapter(tmp_path / "adapter", strength=0.05))
    merged = converted(spacious, Row("safetensors", "BF16", ""), name, seconds=PATIENCE)
    assert merged["quality"] is None
    seen = Seen(Row("gguf", "Q8_0", "llamacpp"), note="not made")
    _TOLD.append(seen)
    seen.made = converted(spacious, seen.row, name, seconds=PATIENCE)
    seen.mark()
    weigh(spacious, seen, name)
    served(spacious, seen, name, seconds=PATIENCE)
    seen.mark()


def _import(platform: Platform, name: str, adapter: Path) -> None:
    session = Session(platform.demo["dashboard_url"])
    session.sign_in(platform.demo["email"], platform.demo["password"])
    run = upload(session, "my-org", name, sorted(adapter.iterdir()), base=f"{MODEL}@1")
    ended = watch(session, "my-org", run["id"])
    session.close()
    assert ended["state"] == "done", ended
