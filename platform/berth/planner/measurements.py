"""Rows of a file of measurements as questions to the planner. Reading only: `answers` answers them."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

COLUMNS: Final = (
    "id", "kind", "model", "params_b", "arch_notes", "runtime", "runtime_version", "quant", "gpu", "gpu_count", "tensor_parallel",
    "input_tokens", "output_tokens", "concurrency", "metric", "value", "unit", "source_title", "source_url", "quote_or_location",
)  # fmt: skip


class Measurement(msgspec.Struct, frozen=True):
    """One point. None: the source does not say."""

    id: str
    kind: str
    model: str
    billions: float | None
    notes: str
    runtime: str
    version: str
    quant: str
    gpu: str
    gpus: int
    tensor_parallel: int | None
    input: int | None
    output: int | None
    concurrency: int | None
    unlimited: bool  # "max load"
    metric: str
    value: float
    unit: str
    source: str
    quote: str
    url: str = ""

    @property
    def source_key(self) -> str:
        """Of the source, as short as the point's id allows."""
        return self.id.rsplit("-", 1)[0]

    @property
    def engine(self) -> str:
        return engine_key(self.runtime, self.version)


class BadFile(Exception):
    """The file is not in the format of the truth set."""


def read_measurements(lines: Iterable[str]) -> list[Measurement]:
    """Raises BadFile."""
    reader = csv.DictReader(lines)
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise BadFile(f"The file has no column {', '.join(missing)}: it is not in the format of the truth set.")
    return [_read(row, number) for number, row in enumerate(reader, start=2)]


def _read(row: Mapping[str, str], line: int) -> Measurement:
    try:
        value = float(row["value"])
    except ValueError:
        raise BadFile(f"Line {line}: the value {row['value']!r} is not a number.") from None
    return Measurement(
        id=row["id"],
        kind=row["kind"],
        model=row["model"],
        billions=_number(row["params_b"]),
        notes=row["arch_notes"],
        runtime=row["runtime"],
        version=row["runtime_version"],
        quant=row["quant"],
        gpu=row["gpu"],
        gpus=_whole(row["gpu_count"]) or 1,
        tensor_parallel=_whole(row["tensor_parallel"]),
        input=_whole(row["input_tokens"]),
        output=_whole(row["output_tokens"]),
        concurrency=_whole(row["concurrency"]),
        unlimited=row["concurrency"].strip().lower().startswith("max"),
        metric=row["metric"],
        value=value,
        unit=row["unit"],
        source=row["source_title"],
        quote=row["quote_or_location"],
        url=row["source_url"],
    )


def _number(text: str) -> float | None:
    match = re.match(r"\s*(\d+(?:\.\d+)?)", text or "")
    return float(match.group(1)) if match else None


def _whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


_ENGINES: Final = (
    ("mlperf", "tensorrt_llm_mlperf"),
    ("tensorrt", "tensorrt_llm"), ("vulkan", "llamacpp_vulkan"), ("llama.cpp", "llamacpp"), ("llama-cpp", "llamacpp"),
    ("llama-server", "llamacpp"), ("ollama", "ollama"), ("vllm", "vllm"), ("sglang", "sglang"), ("ipex", "autoawq_ipex"),
    ("autoawq", "autoawq"), ("transformers", "transformers"), ("exllamav2", "exllamav2"), ("exllama", "exllama"), ("mlc", "mlc"),
    ("onnx", "onnxruntime"), ("pytorch", "pytorch"), ("tgi", "vllm"), ("lmdeploy", "vllm"), ("text generation inference", "vllm"),
)  # fmt: skip


def engine_key(runtime: str, version: str) -> str:
    """The section of the coefficients: an engine's name, and for those that were rewritten the generation. Empty: not known."""
    text = runtime.lower()
    name = next((key for pattern, key in _ENGINES if pattern in text), "")
    if name in ("vllm", "tensorrt_llm", "llamacpp") and _old(name, version):
        return f"{name}_v0"
    if name == "transformers":
        return name + _transformers_generation(version)
    if name == "autoawq" and version.upper() == "GEMV":
        return "autoawq_gemv"
    return name


def _transformers_generation(version: str) -> str:
    """How its cache grows: by copies until 4.40 or so; from 4.50 the pages report memory without the prefill's peak."""
    match = re.match(r"v?4\.(\d+)", version.strip())
    if match is None or int(match.group(1)) < 40:
        return "_v0"
    return "_late" if int(match.group(1)) >= 50 else ""


def _old(name: str, version: str) -> bool:
    """Before the rewrite: vLLM's V1 engine (0.8), TensorRT-LLM 0.10, llama.cpp's split by layers (2024)."""
    if version.strip().endswith("2023"):
        return True
    if name == "llamacpp":
        return False
    match = re.match(r"v?0\.(\d+)", version.strip())
    return match is not None and int(match.group(1)) < (8 if name == "vllm" else 10)
