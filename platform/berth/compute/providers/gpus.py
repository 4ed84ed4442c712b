"""The NVIDIA GPUs of this machine, as the driver tells through NVML. Without `nvidia-ml-py` or a driver there are none."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from berth.compute.provider import Device, HardwareKind, Offer


class Gpu(msgspec.Struct, frozen=True):
    id: str  # "GPU-2f6c…": never changes, however devices are numbered
    model: str  # "l4"
    memory_bytes: int
    free_memory_bytes: int


def discover(environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """By their ids. `CUDA_VISIBLE_DEVICES` of our own environment limits them: what is hidden from us is not given away."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        found = [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return ()
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
    return tuple(sorted(_visible(found, environ.get("CUDA_VISIBLE_DEVICES")), key=lambda gpu: gpu.id))


def gpu_offers(gpus: Iterable[Gpu], taken: Collection[str], cores: int, region: str | None) -> Iterator[Offer]:
    """One for each kind of GPU, of which a replica gets whole devices. `taken`: ids of those that replicas use now."""
    kinds: dict[tuple[str, int], list[Gpu]] = defaultdict(list)
    for gpu in gpus:
        kinds[gpu.model, gpu.memory_bytes].append(gpu)
    for (model, memory), alike in sorted(kinds.items()):
        free = [gpu for gpu in alike if gpu.id not in taken]
        yield Offer(
            key=f"gpu-{model}-local",
            kind=HardwareKind.GPU,
            cores=cores,
            memory_bytes=memory,
            free_memory_bytes=max((gpu.free_memory_bytes for gpu in free), default=0),
            gpu=model,
            gpus=len(alike),
            free_gpus=len(free),
            region=region,
            devices=tuple(Device(gpu.id, gpu.memory_bytes) for gpu in alike),
        )


def model_name(name: str) -> str:
    """ "NVIDIA GeForce RTX 4090" -> "rtx-4090"."""
    words = [word for word in name.lower().split() if word not in ("nvidia", "tesla", "geforce")]
    return "-".join(words)


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        id=_text(nvml.nvmlDeviceGetUUID(handle)),
        model=model_name(_text(nvml.nvmlDeviceGetName(handle))),
        memory_bytes=int(memory.total),
        free_memory_bytes=int(memory.free),
    )


def _visible(gpus: list[Gpu], only: str | None) -> list[Gpu]:
    """As CUDA reads the variable: numbers or the beginnings of ids, up to the first that names nothing."""
    if only is None:
        return gpus
    chosen: list[Gpu] = []
    for part in filter(None, (part.strip() for part in only.split(","))):
        named = [gpus[int(part)]] if part.isdecimal() and int(part) < len(gpus) else []
        named = named or [gpu for gpu in gpus if gpu.id.startswith(part)]
        if len(named) != 1:
            break
        chosen += named
    return chosen


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
