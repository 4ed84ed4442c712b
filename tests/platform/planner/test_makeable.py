"""Quantizations that are not there: planned as if they were, taken only where that is better, never when they are known to be bad."""

from __future__ import annotations

import msgspec
import pytest

from berth.planner.makeable import LADDER, Maker, is_to_be_made, makeable
from berth.planner.needs import Needs, Pins, Quality
from berth.planner.plan import plan
from berth.planner.quality import MeasuredQuality
from berth.planner.shapes import Plan, PlanArtefact
from tests.platform.planner.worlds import CPU, GIB, SMOLLM2, artefact

HALF = 2 * SMOLLM2.parameters
MODEL = msgspec.structs.replace(SMOLLM2, tied_embeddings=True)
SAFETENSORS = artefact("st", "BF16", HALF, format="safetensors", engines=("vllm",))


def asked(
    *there: PlanArtefact,
    needs: Needs | None = None,
    pins: Pins | None = None,
    barred: dict[str, str] | None = None,
    converters: bool = True,
    memory: int = 8 * GIB,
) -> Plan:
    files = [*there, *makeable(MODEL, there, barred, maker=Maker(converters))]
    tier = msgspec.structs.replace(CPU, memory_bytes=memory)
    return plan(MODEL, files, needs or Needs(), [tier], pins)


def test_sizes_are_those_of_the_layout_and_shrink_along_the_ladder() -> None:
    made = [each for each in makeable(MODEL, [SAFETENSORS]) if each.format == "gguf"]
    sizes = [each.facts.tensor_bytes for each in made]
    assert [each.facts.quantization for each in made] == list(LADDER)
    assert sizes == sorted(sizes, reverse=True)
    # As files with their headers, llama.cpp's tools make 144.8 and 105.5 MB of the sample model.
    assert sizes[0] == pytest.approx(144.8e6, rel=0.02)
    assert sizes[-1] == pytest.approx(105.5e6, rel=0.02)


def test_a_model_that_nothing_here_loads_is_made_loadable() -> None:
    choice = asked(SAFETENSORS).choice
    assert choice
    assert (choice.engine, choice.quantization, choice.made_of) == ("llamacpp", "Q8_0", "st")
    assert is_to_be_made(choice.artefact_id)
    assert "to_be_made" in [each.code for each in choice.reasons]


def test_what_is_there_is_taken_before_what_would_have_to_be_made() -> None:
    found = asked(SAFETENSORS, artefact("q4", "Q4_K_M", 105_000_000))
    assert found.choice
    assert (found.choice.artefact_id, found.choice.made_of) == ("q4", "")
    assert {each.code for each in found.rejected if is_to_be_made(each.artefact_id)} == {"not_needed"}


def test_what_is_there_gives_way_where_it_does_not_do() -> None:
    full = artefact("f16", "F16", HALF)

    def speed(quantization: str) -> float:
        choice = asked(full, pins=Pins(quantization=quantization), needs=Needs(context_length=2048)).choice
        assert choice
        assert choice.predicted.tokens_per_second
        return choice.predicted.tokens_per_second.value

    slow, *rungs = [speed(name) for name in ("F16", *LADDER)]
    assert slow < rungs[0] < rungs[-1]
    between = (slow + rungs[0]) / 2
    choice = asked(full, needs=Needs(context_length=2048, tokens_per_second=between)).choice
    assert choice
    assert (choice.quantization, choice.made_of) == ("Q8_0", "f16")
    choice = asked(full, needs=Needs(context_length=2048, tokens_per_second=rungs[-1])).choice
    assert choice
    assert choice.made_of == "f16"
    assert choice.quantization in LADDER[1:]


def test_a_pin_makes_what_it_names() -> None:
    choice = asked(artefact("f16", "F16", HALF), pins=Pins(quantization="Q5_K_M")).choice
    assert choice
    assert (choice.quantization, choice.made_of) == ("Q5_K_M", "f16")


def test_nothing_is_made_of_what_was_quantized_already() -> None:
    assert makeable(MODEL, [artefact("q4", "Q4_K_M"), artefact("w4", "INT4 W4A16", format="safetensors")]) == []


def test_what_is_no_good_is_passed_over_with_its_reason() -> None:
    found = asked(SAFETENSORS, barred={"Q8_0": "It was made and is 3.10 nats away."})
    assert found.choice
    assert found.choice.quantization == "Q6_K"
    told = {each.quantization: (each.code, each.message) for each in found.rejected if each.engine == "llamacpp"}
    assert told["Q8_0"] == ("cannot_be_made", "It was made and is 3.10 nats away.")
    nothing = asked(SAFETENSORS, barred=dict.fromkeys(LADDER, "No good."))
    assert nothing.choice is None or nothing.choice.engine != "llamacpp"


def test_without_converters_only_a_gguf_file_is_a_source() -> None:
    found = asked(SAFETENSORS, converters=False)
    assert all(each.code != "not_needed" for each in found.rejected)
    assert any("make converters" in each.message for each in found.rejected)
    assert found.choice is None or found.choice.engine != "llamacpp"
    choice = asked(SAFETENSORS, artefact("f16", "F16", HALF), converters=False, pins=Pins(quantization="Q8_0")).choice
    assert choice
    assert choice.made_of == "f16"


def test_a_measured_one_below_the_floor_makes_room_for_the_next() -> None:
    poor = artefact("q4", "Q4_K_M", 105_000_000, measured=MeasuredQuality(1.2, 0.5, 0.6))
    choice = asked(artefact("f16", "F16", HALF), poor, needs=Needs(quality=Quality.GOOD, tokens_per_second=60)).choice
    assert choice is None or choice.artefact_id != "q4"
