"""GPUs of one machine: discovery through NVML, offers, and that a replica sees its own devices only. No GPU was here to run it on:
NVML is a stand-in with the shapes of `nvidia-ml-py`."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from berth.compute.launch import LAUNCH_FORMAT, LaunchSpec
from berth.compute.provider import HardwareKind
from berth.compute.providers import gpus
from berth.compute.providers.local import LocalProvider

GIB = 1 << 30
NAMES = {"GPU-b": "NVIDIA L4", "GPU-a": "NVIDIA L4", "GPU-c": "NVIDIA A100-SXM4-80GB"}


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake: Any = types.ModuleType("pynvml")
    ids = list(NAMES)
    fake.NVMLError = type("NVMLError", (Exception,), {})
    fake.open = 0

    def begin() -> None:
        fake.open += 1

    def end() -> None:
        fake.open -= 1

    fake.nvmlInit, fake.nvmlShutdown = begin, end
    fake.nvmlDeviceGetCount = lambda: len(ids)
    fake.nvmlDeviceGetHandleByIndex = lambda index: ids[index]
    fake.nvmlDeviceGetUUID = lambda handle: handle
    fake.nvmlDeviceGetName = lambda handle: NAMES[handle].encode()  # older bindings give bytes
    fake.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(
        total=(80 if handle == "GPU-c" else 24) * GIB, free=20 * GIB
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def spec(name: str, *devices: str) -> LaunchSpec:
    return LaunchSpec(
        format=LAUNCH_FORMAT, replica=name, org_id="o", deployment_id="d", revision=1, engine="llamacpp", files=(),
        model_alias="o/d", context_length=512, slots=1, threads=1, secret_file="", state_dir="", devices=devices,
    )  # fmt: skip


def runtime(tmp_path: Path) -> Path:
    """In the runtime's place: writes down what it can see."""
    script = tmp_path / "runtime"
    seen = tmp_path / "seen.jsonl"
    script.write_text(
        f"#!{sys.executable}\nimport json, os\n"
        f"open({str(seen)!r}, 'a').write(json.dumps(os.environ.get('CUDA_VISIBLE_DEVICES')) + '\\n')\n"
    )
    script.chmod(0o755)
    return script


def test_without_a_driver_or_its_bindings_there_are_none(monkeypatch: pytest.MonkeyPatch, nvml: Any) -> None:
    def refuse() -> None:
        raise nvml.NVMLError

    nvml.nvmlInit = refuse
    assert gpus.discover({}) == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert gpus.discover({}) == ()


def test_devices_are_found_by_id_and_model(nvml: Any) -> None:
    found = gpus.discover({})
    assert [(gpu.id, gpu.model, gpu.memory_bytes) for gpu in found] == [
        ("GPU-a", "l4", 24 * GIB),
        ("GPU-b", "l4", 24 * GIB),
        ("GPU-c", "a100-sxm4-80gb", 80 * GIB),
    ]
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("only", "left"),
    [("1", ["GPU-a"]), ("GPU-c,0", ["GPU-b", "GPU-c"]), ("", []), ("0,9,1", ["GPU-b"]), ("GPU-", [])],
)
def test_what_is_hidden_from_berth_is_not_given_away(nvml: Any, only: str, left: list[str]) -> None:
    assert [gpu.id for gpu in gpus.discover({"CUDA_VISIBLE_DEVICES": only})] == left


def test_each_kind_is_an_offer_beside_the_processors(nvml: Any, tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path, python=Path(sys.executable), environ={})
    offers = {offer.key: offer for offer in provider.offers()}
    assert list(offers) == ["gpu-a100-sxm4-80gb-local", "gpu-l4-local", "cpu-local"]
    l4 = offers["gpu-l4-local"]
    assert (l4.kind, l4.gpus, l4.free_gpus, l4.memory_bytes) == (HardwareKind.GPU, 2, 2, 24 * GIB)
    assert [device.id for device in l4.devices] == ["GPU-a", "GPU-b"]


@pytest.mark.threat("E4")
def test_a_replica_sees_its_own_devices_and_one_without_sees_none(nvml: Any, tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path / "home", python=runtime(tmp_path), environ={"CUDA_VISIBLE_DEVICES": "0,1,2"})
    provider.start(spec("r-1", "GPU-a", "GPU-c"), "secret")
    provider.start(spec("r-2"), "secret")
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    assert seen == ["GPU-a,GPU-c", ""]
