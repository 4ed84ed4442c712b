"""What a revision's engine is told beside context and slots, as its plan and its model say. Stored with the revision, told to replicas."""

from __future__ import annotations

from typing import Any

import msgspec

from berth.catalog.facts import artefact_facts, model_facts
from berth.catalog.models import Artefact
from berth.deployments.models import Revision
from berth.planner.parsers import parsers_for
from berth.planner.shapes import Choice


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """As `berth.compute.launch.LaunchSpec` has them. None of them names a quantization: an engine reads that from the files."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    kv_dtype: str | None = None
    memory_fraction: float | None = None
    kv_cache_bytes: int | None = None
    max_batched_tokens: int | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None


def options_for(choice: Choice, artefact: Artefact) -> dict[str, Any]:
    """As a revision stores them. `artefact` comes with its version and model."""
    version, layout = artefact.version, choice.layout
    facts = model_facts(version.facts)
    accepts = artefact_facts(artefact.facts).chat_template_accepts
    parsers = parsers_for(
        choice.engine,
        facts.architecture,
        f"{facts.name or ''} {version.model.name}",
        takes_tools="tools" in accepts and facts.pooling is None,
    )
    told = Options(
        tensor_parallel=layout.tensor_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        kv_dtype=layout.kv_dtype,
        memory_fraction=layout.memory_fraction,
        kv_cache_bytes=layout.kv_cache_bytes,
        max_batched_tokens=layout.max_batched_tokens,
        tool_parser=parsers.tools,
        reasoning_parser=parsers.reasoning if facts.pooling is None else None,
    )
    stored: dict[str, Any] = msgspec.to_builtins(told)
    return stored


def told_by(revision: Revision) -> dict[str, Any]:
    """As fields of a LaunchSpec."""
    return msgspec.structs.asdict(msgspec.convert(revision.options, Options))
