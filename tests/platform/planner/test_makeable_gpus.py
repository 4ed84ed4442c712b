"""Compressed safetensors that are not there, for GPUs: only where the files do not do, only on hardware that has the kernels, only what
the machine that converts can make."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.catalog.facts import ModelFacts
from berth.planner.capability import capabilities, unsupported
from berth.planner.hardware import gpu_by_name
from berth.planner.makeable import COMPRESSED, LADDER, Maker, is_to_be_made, makeable
from berth.planner.needs import Needs, Pins, Quality
from berth.planner.plan import plan
from berth.planner.quality import MeasuredQuality
from berth.planner.shapes import Choice, Plan, PlanArtefact
from berth.planner.tiers import Tier
from tests.platform.planner.test_on_gpus import a_model, a_tier, files
from tests.platform.planner.worlds import CPU

GIB = 1 << 30
EIGHT = a_model()  # 8 billion: 15 GiB in 16 bits
NAMES = tuple(recipe.quantization for recipe in COMPRESSED)


def planned(
    model: ModelFacts,
    *there: PlanArtefact,
    tiers: list[Tier],
    pins: Pins | None = None,
    maker: Maker | None = None,
    barred: dict[str, str] | None = None,
    **needs: object,
) -> Plan:
    made = makeable(model, there, barred, maker=maker)
    asked = msgspec.convert({"context_length": 4096, "concurrency": 2, **needs}, Needs)
    return plan(model, [*there, *made], asked, tiers, pins)


def on(gpu: str, gpus: int = 1, model: ModelFacts = EIGHT, **more: object) -> Plan:
    return planned(model, files(model), tiers=[a_tier(gpu, gpus)], **more)  # type: ignore[arg-type]


def of(parameters: float) -> ModelFacts:
    """As deep as that makes it."""
    layers = max(1, round((parameters - 1.05e9) / 0.218e9))
    return a_model(layers, parameters=int(1.05e9 + layers * 0.218e9))


def chosen(found: Plan) -> Choice:
    assert found.choice is not None, found.rejected
    return found.choice


def against(found: Plan, quantization: str, engine: str = "vllm") -> tuple[str, str]:
    [row] = [each for each in found.rejected if (each.quantization, each.engine) == (quantization, engine)]
    return row.code, row.message


def test_what_fits_as_it_is_is_not_made() -> None:
    found = on("h100")
    assert (chosen(found).quantization, chosen(found).made_of) == ("BF16", "")
    assert {against(found, name)[0] for name in NAMES} == {"not_needed"}


def test_what_does_not_fit_in_16_bits_is_made_in_8_for_the_engine_that_reads_it() -> None:
    found = on("l4", model=of(14.8e9))  # 28 GiB, on 24
    choice = chosen(found)
    assert (choice.engine, choice.quantization, choice.made_of, choice.file_format) == (
        "vllm", "FP8", "a-1", "safetensors",
    )  # fmt: skip
    assert is_to_be_made(choice.artefact_id)
    [told] = [each for each in choice.reasons if each.code == "to_be_made"]
    assert told.params["quantization"] == "FP8" and told.params["source"] == "BF16"
    assert choice.size == pytest.approx(14.8e9, rel=0.2)
    assert against(found, "Q8_0", "llamacpp")[0] == "made_for_gpus"
    assert against(found, "INT8 W8A8")[0] == "higher_loss"


@pytest.mark.parametrize(
    ("gpu", "gives"),
    [
        ("v100", "llamacpp"),  # 7.0: none of the kernels
        ("t4", "INT8 W8A8"),  # 7.5
        ("a10", "INT8 W8A8"),  # 8.6: no FP8
        ("l4", "FP8"),  # 8.9
    ],
)
def test_each_device_gets_what_it_has_kernels_for(gpu: str, gives: str) -> None:
    device = gpu_by_name(gpu)
    assert device is not None
    model = of(device.usable * 0.6)  # as weights of 8 bits; twice that does not fit
    choice = chosen(on(gpu, model=model, context_length=1024, concurrency=1))
    assert gives in (choice.quantization, choice.engine)
    assert choice.made_of


def test_four_bits_where_eight_do_not_fit() -> None:
    device = gpu_by_name("l4")
    assert device is not None
    model = of(device.usable * 1.3)
    found = on("l4", model=model, context_length=1024, concurrency=1)
    assert chosen(found).quantization in ("INT4 W4A16", *LADDER[2:])
    barred = dict.fromkeys(("INT4 W4A16", *LADDER), "No good.")
    other = chosen(on("l4", model=model, context_length=1024, concurrency=1, barred=barred))
    assert other.quantization == "AWQ-INT4"  # takes longest, and is tried when the others are no good


@pytest.mark.parametrize(
    ("maker", "why", "says"),
    [
        (Maker(converters=False), "converters_missing", "make converters"),
        (Maker(memory=16 * GIB), "making_needs_memory", "of memory"),
    ],
)
def test_where_it_cannot_be_made_the_plan_says_why(maker: Maker, why: str, says: str) -> None:
    found = on("l4", model=of(14.8e9), maker=maker)
    code, message = against(found, "FP8")
    assert code == why
    assert says in message
    assert found.choice is None or found.choice.engine == "llamacpp"


def test_a_gguf_file_that_was_found_broken_is_not_made_for_a_gpu_again() -> None:
    barred = dict.fromkeys((*LADDER, *NAMES), "It was made and is broken.")
    found = on("l4", model=of(14.8e9), barred=barred)
    assert found.choice is None
    assert {against(found, name, "llamacpp") for name in LADDER} == {("cannot_be_made", "It was made and is broken.")}


def test_mixtures_of_experts_are_not_compressed() -> None:
    mixture = msgspec.structs.replace(EIGHT, experts=8, experts_per_token=2, expert_parameters=6_000_000_000)
    found = on("l4", model=mixture)
    assert {against(found, name)[0] for name in NAMES} == {"experts_not_compressed"}


def test_on_processors_only_where_the_engine_is_pinned() -> None:
    large = msgspec.structs.replace(CPU, memory_bytes=256 * GIB)
    usual = planned(EIGHT, files(EIGHT), tiers=[large])
    assert not [each for each in usual.rejected if each.quantization in NAMES]
    assert chosen(usual).engine == "llamacpp"
    pinned = planned(EIGHT, files(EIGHT), tiers=[large], pins=Pins(engine="vllm", quantization="INT8 W8A8"))
    assert (chosen(pinned).engine, chosen(pinned).quantization) == ("vllm", "INT8 W8A8")


def test_a_pin_makes_what_it_names() -> None:
    for name in ("FP8", "INT8 W8A8", "INT4 W4A16", "AWQ-INT4"):
        choice = chosen(on("h100", pins=Pins(quantization=name)))
        assert (choice.engine, choice.quantization, choice.made_of) == ("vllm", name, "a-1")
    choice = chosen(on("h100", pins=Pins(quantization="FP8", engine="tensorrt_llm")))
    assert (choice.engine, choice.quantization) == ("tensorrt_llm", "FP8")


def test_one_that_was_made_and_measured_below_the_floor_makes_room_for_the_next() -> None:
    model = of(14.8e9)
    poor = msgspec.structs.replace(
        files(model, quantization="FP8", bits=8.4), id="a-2", measured=MeasuredQuality(0.5, 0.5, 0.6)
    )
    found = planned(model, files(model), poor, tiers=[a_tier("l4", 1)], quality=Quality.GOOD)
    assert chosen(found).quantization == "INT8 W8A8"
    assert chosen(found).made_of == "a-1"
    assert against(found, "FP8")[0] == "measured_loss"


def test_only_of_exact_safetensors() -> None:
    four = files(EIGHT, quantization="INT4 W4A16", bits=4.3)
    assert makeable(EIGHT, [four]) == []
    whole = files(EIGHT, "gguf", "F16")
    assert {each.format for each in makeable(EIGHT, [whole])} == {"gguf"}
    unknown = msgspec.structs.replace(files(EIGHT), engines=())
    assert {each.format for each in makeable(EIGHT, [unknown])} == {"gguf"}


def test_what_takes_longer_to_make_is_made_later() -> None:
    made = {each.facts.quantization: each.seconds for each in makeable(EIGHT, [files(EIGHT)], maker=Maker(threads=8))}
    assert made["FP8"] < made["INT4 W4A16"] < made["AWQ-INT4"]
    slower = {each.facts.quantization: each.seconds for each in makeable(EIGHT, [files(EIGHT)], maker=Maker(threads=1))}
    assert all(slower[name] > made[name] for name in made)


@settings(max_examples=120, deadline=None)
@given(
    billions=st.floats(1.3, 120),
    gpu=st.sampled_from(("v100", "t4", "a10", "a100", "l4", "l40s", "h100", "mi300x")),
    gpus=st.integers(1, 8),
    context=st.sampled_from((1024, 8192)),
    concurrency=st.integers(1, 32),
    quality=st.sampled_from(Quality),
    barred=st.sets(st.sampled_from((*LADDER, *NAMES))),
    memory=st.none() | st.integers(1, 512),
    converters=st.booleans(),
    there=st.sets(st.sampled_from((("FP8", 8.3), ("INT4 W4A16", 4.4), ("INT8 W8A8", 8.3)))),
    processor=st.booleans(),
)
def test_what_is_made_runs_fits_and_is_needed(
    billions: float,
    gpu: str,
    gpus: int,
    context: int,
    concurrency: int,
    quality: Quality,
    barred: set[str],
    memory: int | None,
    converters: bool,
    there: set[tuple[str, float]],
    processor: bool,
) -> None:
    model = of(billions * 1e9)
    own = [files(model)] + [
        msgspec.structs.replace(files(model, quantization=name, bits=bits), id=f"b-{name}") for name, bits in there
    ]
    tiers = [a_tier(gpu, gpus)] + ([msgspec.structs.replace(CPU, price_per_hour=Decimal("4"))] if processor else [])
    sentences = dict.fromkeys(barred, "No good.")
    maker = Maker(converters, None if memory is None else memory * GIB, 8)
    wish = {"context_length": context, "concurrency": concurrency, "quality": quality}
    found = planned(model, *own, tiers=tiers, maker=maker, barred=sentences, **wish)
    choice = found.choice
    if choice is None:
        return
    device = gpu_by_name(gpu)
    assert device is not None
    if choice.tier != CPU.key:
        assert choice.memory.total <= device.usable * choice.layout.devices
        capability = capabilities()[choice.engine]
        if choice.file_format == "safetensors":
            kernels = "INT4 W4A16" if choice.made_of and choice.quantization == "AWQ-INT4" else choice.quantization
            assert unsupported(capability, kernels, device, model, 16) is None
    if not choice.made_of:
        return
    assert choice.quantization not in barred
    assert converters
    if choice.file_format == "safetensors":
        assert choice.tier != CPU.key
        assert memory is None or 2 * files(model).size < memory * GIB
    # What is there does not do on any tier of that price: alone, it has no plan, or a dearer one.
    alone = plan(model, own, msgspec.convert(wish, Needs), tiers)
    assert alone.choice is None
    assert all(each.quantization != choice.quantization or each.tier != choice.tier or each.engine != choice.engine
               for each in found.rejected)  # fmt: skip
