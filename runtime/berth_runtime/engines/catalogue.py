"""The engines there are, by name."""

from __future__ import annotations

from collections.abc import Callable

from berth_runtime.engines.engine import Engine
from berth_runtime.engines.llamacpp import LlamaCpp
from berth_runtime.engines.ollama import Ollama
from berth_runtime.engines.onnx import OnnxRuntime
from berth_runtime.engines.reference import Reference
from berth_runtime.engines.tensorrt_llm import TensorRtLlm
from berth_runtime.engines.vllm import Vllm

ENGINES: dict[str, Callable[[], Engine]] = {
    engine.name: engine for engine in (LlamaCpp, OnnxRuntime, Vllm, TensorRtLlm, Ollama, Reference)
}


def engine_named(name: str) -> Engine | None:
    """The engine, or None if this runtime does not have it."""
    make = ENGINES.get(name)
    return make() if make else None
