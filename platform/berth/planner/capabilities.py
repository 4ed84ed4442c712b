"""What each engine can load and where it can run. An engine that is not here is not planned."""

from __future__ import annotations

from typing import Final

import msgspec

from berth.planner.memory import PROCESS_BYTES


class EngineCapabilities(msgspec.Struct, frozen=True):
    formats: frozenset[str]
    kinds: frozenset[str]  # of tiers
    max_slots: int
    context_step: int  # the context of a request is rounded up to a multiple of this
    # Kinds on which it is planned only where somebody pins it or its artefact, or where nothing else loads what there is: its
    # program is no part of every installation.
    asked_kinds: frozenset[str] = frozenset()
    process_bytes: int = PROCESS_BYTES  # of main memory, besides weights, cache and buffers
    copies: int = 1  # of the weights in main memory, at the highest
    widened: frozenset[str] = frozenset()  # quantizations of 8 bits that it computes with as 16 on a CPU

    def copies_of(self, quantization: str) -> int:
        """How many times the size of the files the weights take in main memory on a CPU."""
        return self.copies * (2 if quantization in self.widened else 1)


ENGINES: Final[dict[str, EngineCapabilities]] = {
    "llamacpp": EngineCapabilities(
        formats=frozenset({"gguf"}), kinds=frozenset({"cpu"}), max_slots=256, context_step=256
    ),
    "onnxruntime": EngineCapabilities(
        formats=frozenset({"onnx"}),
        kinds=frozenset(),
        asked_kinds=frozenset({"cpu"}),
        max_slots=16,
        context_step=1,
        process_bytes=512 << 20,
        copies=2,  # packed anew for the processor, beside what was read
    ),
    "vllm": EngineCapabilities(
        formats=frozenset({"safetensors"}),
        kinds=frozenset(),
        asked_kinds=frozenset({"cpu"}),
        max_slots=1024,
        context_step=16,
        process_bytes=5 << 30,
        copies=2,  # two processes with PyTorch, and the least cache that it takes on a CPU
        widened=frozenset({"FP8"}),
    ),
}
