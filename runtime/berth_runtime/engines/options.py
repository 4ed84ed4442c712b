"""What a spec may ask of an engine. An option that an engine does not have is refused, never left out."""

from __future__ import annotations

from typing import Final

from berth_runtime.failure import Failure
from berth_runtime.spec import LaunchSpec

# Name of each option, and what it is when nothing is asked.
_DEFAULTS: Final[dict[str, object]] = {
    "adapters": (),
    "pooling": None,
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "quantization": None,
    "kv_dtype": None,
    "memory_fraction": None,
    "kv_cache_bytes": None,
    "max_batched_tokens": None,
    "tool_parser": None,
    "reasoning_parser": None,
    "prefix_cache": True,
}
_NEVER_AN_OPTION: Final = frozenset(
    {"prefix_cache", "memory_fraction"}
)  # wishes, which an engine without them grants anyway


def require(spec: LaunchSpec, engine: str, *known: str) -> None:
    """Raises Failure if the spec asks for an option other than the `known` ones."""
    for name, default in _DEFAULTS.items():
        if name not in known and name not in _NEVER_AN_OPTION and getattr(spec, name) != default:
            raise Failure(
                "unsupported_option",
                f"The engine {engine} cannot do what the deployment asks ({name}). Choose another engine or leave it out.",
            )
