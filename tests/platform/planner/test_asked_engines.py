"""Engines that are no part of every installation: planned where somebody names them or their artefact, or where nothing else would do."""

from __future__ import annotations

import pytest

from berth.planner.capabilities import ENGINES
from berth.planner.needs import Needs, Pins
from berth.planner.plan import plan
from berth.planner.shapes import Plan, PlanArtefact
from tests.platform.planner.worlds import CPU, SMOLLM2, artefact

GGUF = artefact("gguf")
ONNX = artefact("onnx", "INT4 W4A16", format="onnx", engines=("onnxruntime",))
PLAIN = artefact("plain", "BF16", 270_000_000, format="safetensors", engines=("vllm",))


def planned(*artefacts: PlanArtefact, pins: Pins | None = None) -> Plan:
    return plan(SMOLLM2, artefacts, Needs(), [CPU], pins)


def engine(found: Plan) -> str | None:
    return found.choice.engine if found.choice else None


@pytest.mark.parametrize(("other", "name"), [(ONNX, "onnxruntime"), (PLAIN, "vllm")])
def test_named_or_alone_they_are_planned_and_else_not(other: PlanArtefact, name: str) -> None:
    usual = planned(GGUF, other)
    assert engine(usual) == "llamacpp"
    assert [each.code for each in usual.rejected if each.engine == name] == ["engine_not_asked_for"]
    assert engine(planned(GGUF, other, pins=Pins(engine=name))) == name
    assert engine(planned(GGUF, other, pins=Pins(artefact_id=other.id))) == name
    assert engine(planned(other)) == name


def test_their_memory_is_their_own() -> None:
    for other in (ONNX, PLAIN):
        choice = planned(other).choice
        assert choice is not None
        held = ENGINES[choice.engine]
        assert choice.memory.overhead >= held.process_bytes + (held.copies - 1) * choice.memory.weights


def test_on_a_processor_vllm_computes_with_fp8_as_with_16_bits() -> None:
    """It writes them out when it starts (`berth_runtime.engines.sixteen_bits`), so they need the memory of 16 bits; and nobody is given
    them there who did not ask."""
    eight = artefact("eight", "FP8", 135_000_000, format="safetensors", engines=("vllm",))
    choice = planned(eight).choice
    assert choice is not None
    held = ENGINES["vllm"]
    assert choice.memory.overhead >= held.process_bytes + (2 * held.copies - 1) * choice.memory.weights
    usual = planned(GGUF, eight)
    assert engine(usual) == "llamacpp"
    assert [each.code for each in usual.rejected if each.engine == "vllm"] == ["engine_not_asked_for"]
