"""Rows of a file of measurements as questions to the planner. Reading only: `answers` answers them."""

from __future__ import annotations

import csv
import math
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


NEEDED: Final = ("model", "metric", "value")


def read_measurements(lines: Iterable[str]) -> list[Measurement]:
    """What a file leaves out is not stated: only the model, the metric and its value must be there. Raises BadFile."""
    reader = csv.DictReader(lines)
    try:
        names = {name: _plain(name) for name in reader.fieldnames or ()}
        missing = [name for name in NEEDED if name not in names.values()]
        if missing:
            raise BadFile(f"The file has no column {', '.join(missing)}: it is not in the format of the truth set.")
        return [
            _read({names[key]: str(text or "").strip() for key, text in row.items() if key in names}, number)
            for number, row in enumerate(reader, start=2)
        ]
    except csv.Error as error:
        raise BadFile(f"It cannot be read as CSV: {error}.") from None


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name.strip("\ufeff \t").lower()).strip("_")


def _read(row: Mapping[str, str], line: int) -> Measurement:
    def field(name: str) -> str:
        return row.get(name, "")

    load, gpu = field("concurrency"), field("gpu")
    tensor = _whole(field("tensor_parallel"))
    return Measurement(
        id=field("id") or f"line-{line}",
        kind=field("kind"),
        model=field("model"),
        billions=_billions(field("params_b")),
        notes=field("arch_notes"),
        runtime=field("runtime"),
        version=field("runtime_version"),
        quant=field("quant"),
        gpu=gpu,
        gpus=_whole(field("gpu_count")) or _devices(gpu) or tensor or 1,
        tensor_parallel=tensor,
        input=_whole(field("input_tokens")),
        output=_whole(field("output_tokens")),
        concurrency=_whole(load),
        unlimited=re.match(r"(max|unlimited|inf|saturat|offline|peak|∞)", load.lower()) is not None,
        metric=field("metric"),
        value=_value(field("value")),
        unit=field("unit"),
        source=field("source_title"),
        quote=field("quote_or_location"),
        url=field("source_url"),
    )


def _value(text: str) -> float:
    """Not a number: the point is listed as unreadable, the rest of the file is not lost with it."""
    word = text.lower()
    if word in ("true", "yes", "fits", "ok"):
        return 1.0
    if word in ("false", "no", "oom", "out of memory"):
        return 0.0
    number = _number(text)
    return math.nan if number is None else number


_NUMBER: Final = re.compile(r"[~≈<>=\s$]*(-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)\s*([kmb](?![a-z]))?", re.IGNORECASE)
_TIMES: Final = {"k": 1e3, "m": 1e6, "b": 1e9}


def _number(text: str) -> float | None:
    """The first one: "1,024", "~900", "128k"."""
    match = _NUMBER.match(text or "")
    if match is None:
        return None
    try:
        return float(match.group(1).replace(",", "")) * _TIMES.get((match.group(2) or "").lower(), 1.0)
    except ValueError:
        return None


def _billions(text: str) -> float | None:
    """Of "7", "7B", "350M" and 7000000000."""
    number = _number(text)
    if number is None or number <= 0:
        return None
    return number / 1e9 if number >= 1e5 else number


def _whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None or not 0 <= number < 1e12 else int(number)


def _devices(gpu: str) -> int | None:
    """ "8x H100" -> 8. The two sockets of "2x EPYC 9654" are one machine."""
    match = re.match(r"\s*(\d{1,3})\s*[x×*]\s*[a-z]|.*[a-z0-9]\s*[x×*]\s*(\d{1,3})\s*$", gpu.lower())
    if match is None or re.search(r"epyc|xeon|cpu", gpu.lower()):
        return None
    return int(match.group(1) or match.group(2))


_ENGINES: Final = (
    ("mlperf", "tensorrt_llm_mlperf"), ("trt-llm|trtllm|tensorrt|fastertransformer|nvidia nim|\\bnim\\b", "tensorrt_llm"),
    ("vulkan", "llamacpp_vulkan"),
    ("llama[._ -]?cpp|llama-(server|bench|cli)|ggml|gguf|llamafile|koboldcpp|lm ?studio|ctransformers|ik_llama|jan\\b", "llamacpp"),
    ("ollama", "ollama"), ("vllm|aphrodite", "vllm"), ("sglang", "sglang"), ("ipex", "autoawq_ipex"), ("autoawq|awq", "autoawq"),
    ("exllama ?v?[23]|exl[23]|tabbyapi", "exllamav2"), ("exllama", "exllama"), ("mlc", "mlc"), ("onnx|directml|\\bort\\b", "onnxruntime"),
    ("gpt-fast|torch\\.compile|pytorch|torchao|eager", "pytorch"),
    ("transformers|hugging ?face|\\bhf\\b|accelerate|bitsandbytes", "transformers"),
    ("tgi|text[ -]generation[ -]inference|lmdeploy|turbomind|deepspeed|mii|lightllm|lorax|friendli|mlserve|scalellm|rtp-llm|mindie|optimum",
     "vllm"),
    ("\\bmlx\\b|mlx[-_ ]lm|mlx", "llamacpp"), ("openvino|neural ?speed|llama2?\\.c|candle|burn", "llamacpp"),
)  # fmt: skip


def engine_key(runtime: str, version: str) -> str:
    """The section of the coefficients: an engine's name, and for those that were rewritten the generation. Empty: not known."""
    text = runtime.lower()
    name = next((key for pattern, key in _ENGINES if re.search(pattern, text)), "")
    if name in ("vllm", "tensorrt_llm", "llamacpp") and _old(name, version):
        return f"{name}_v0"
    if name == "llamacpp" and _packed_later(version):
        return "llamacpp_2024"
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


def _packed_later(version: str) -> bool:
    """llama.cpp until July 2024 (b3500) unpacked weights before it multiplied many tokens with them."""
    text = version.strip().lower()
    if build := re.match(r"b(\d{3,5})\b", text):
        return int(build.group(1)) < 3500
    return re.search(r"\b(jan|feb|mar|apr|may|jun)\w*\.? 2024|2024-0[1-6]", text) is not None


def _old(name: str, version: str) -> bool:
    """Before the rewrite: vLLM's V1 engine (0.8), TensorRT-LLM 0.10, llama.cpp's split by layers (2024)."""
    if version.strip().endswith("2023"):
        return True
    if name == "llamacpp":
        return False
    match = re.match(r"v?0\.(\d+)", version.strip())
    return match is not None and int(match.group(1)) < (8 if name == "vllm" else 10)
