"""Deployments on GPUs that are here: the fewest devices that hold what is promised, split as the heads allow."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.catalog.facts import FACTS_FORMAT, ArtefactFacts, AttentionGroup, ModelFacts
from berth.planner.capability import dividing
from berth.planner.hardware import gpu_by_name
from berth.planner.needs import Needs, Pins
from berth.planner.plan import plan
from berth.planner.shapes import Choice, Plan, PlanArtefact
from berth.planner.tiers import Tier

GIB = 1 << 30


def a_model(
    layers: int = 32, width: int = 4096, heads: int = 32, kv_heads: int = 8, parameters: int = 8_030_261_248
) -> ModelFacts:
    return ModelFacts(
        format=FACTS_FORMAT, architecture="LlamaForCausalLM", name="Llama", parameters=parameters, active_parameters=parameters,
        layers=layers, embedding_length=width, feed_forward_length=14_336, heads=heads, context_length=131_072, vocabulary=128_256,
        attention=(AttentionGroup(layers, kv_heads, 128, 128),), sliding_window=None, recurrent=False, has_chat_template=True,
    )  # fmt: skip


LARGE = a_model(80, 8192, 64, 8, 70_553_706_496)


def files(model: ModelFacts, kind: str = "safetensors", quantization: str = "BF16", bits: float = 16) -> PlanArtefact:
    size = int(model.parameters * bits / 8)
    engines = {"safetensors": ("vllm", "tensorrt_llm"), "gguf": ("llamacpp", "ollama"), "onnx": ("onnxruntime",)}[kind]
    facts = ArtefactFacts(FACTS_FORMAT, quantization, 291, size, size, 32)
    return PlanArtefact("a-1", kind, engines, size, facts)


def a_tier(gpu: str = "h100", gpus: int = 8, **fields: Any) -> Tier:
    base = {"cores": 32, "memory_bytes": 512 * GIB, "price_per_hour": Decimal("4")}
    return Tier(key=f"pool-{gpu}", kind="gpu", gpu=gpu, gpus=gpus, **base | fields)


def planned(model: ModelFacts, artefact: PlanArtefact, tier: Tier, pins: Pins | None = None, **needs: Any) -> Plan:
    return plan(model, [artefact], Needs(**needs), [tier], pins)


def chosen(*asked: Any, **needs: Any) -> Choice:
    found = planned(*asked, **needs)
    assert found.choice is not None, found.rejected
    return found.choice


def test_a_small_model_takes_one_device_and_a_large_one_as_many_as_it_needs() -> None:
    small = a_model()
    one = chosen(small, files(small), a_tier(), context_length=8192, concurrency=8)
    assert (one.engine, one.layout.devices, one.layout.tensor_parallel) == ("vllm", 1, 1)
    assert one.layout.kv_dtype is None
    assert one.layout.memory_fraction is not None and 0.5 < one.layout.memory_fraction < 1
    assert one.layout.max_batched_tokens
    assert one.predicted.tokens_per_second is not None and one.predicted.tokens_per_second.value > 20
    large = chosen(LARGE, files(LARGE), a_tier(), context_length=8192, concurrency=8)
    assert large.layout.devices == large.layout.tensor_parallel >= 2
    assert large.memory.total <= large.memory.available


def test_where_a_full_cache_fits_on_no_number_of_devices_it_keeps_eight_bits() -> None:
    model = a_model()
    tier = a_tier("l4", 1)
    assert chosen(model, files(model), tier, context_length=8192, concurrency=2).layout.kv_dtype is None
    most = max(n for n in range(1, 64) if planned(model, files(model), tier, context_length=8192, concurrency=n).choice)
    tight = chosen(model, files(model), tier, context_length=8192, concurrency=most)
    assert tight.layout.kv_dtype == "fp8"


def test_layers_are_split_by_llama_cpp() -> None:
    choice = chosen(LARGE, files(LARGE, "gguf", "Q4_K_M", 4.8), a_tier("l4", 4), context_length=4096, concurrency=1)
    assert (choice.engine, choice.layout.devices, choice.layout.tensor_parallel) == ("llamacpp", 2, 1)
    assert choice.layout.memory_fraction is None


@pytest.mark.parametrize(
    ("artefact", "tier", "code"),
    [
        (files(LARGE), a_tier("l4", 1), "memory_short"),
        (files(LARGE), a_tier("some-new-chip", 8), "hardware_unknown"),
        (files(LARGE, "onnx", "FP16"), a_tier(), "engine_hardware"),
        (files(LARGE, quantization="FP8", bits=8), a_tier("a100", 8), "capability_too_low"),
    ],
)
def test_what_cannot_be_says_why(artefact: PlanArtefact, tier: Tier, code: str) -> None:
    found = planned(LARGE, artefact, tier, context_length=8192)
    assert found.choice is None
    assert code in {each.code for each in found.rejected}


def test_tensorrt_llm_only_where_it_is_pinned() -> None:
    model = a_model()
    assert {each.code for each in planned(model, files(model), a_tier()).rejected} == {"engine_not_asked_for"}
    assert chosen(model, files(model), a_tier(), Pins(engine="tensorrt_llm")).engine == "tensorrt_llm"


@settings(max_examples=60, deadline=None)
@given(
    heads=st.sampled_from((12, 14, 24, 28, 32, 40, 64)),
    kv_heads=st.sampled_from((1, 2, 4, 8)),
    layers=st.integers(8, 96),
    billions=st.floats(0.5, 200),
    gpu=st.sampled_from(("l4", "a100", "h100", "h200")),
    gpus=st.integers(1, 8),
    context=st.sampled_from((1024, 8192, 65_536)),
    concurrency=st.integers(1, 64),
)
def test_what_is_chosen_fits_and_divides(
    heads: int, kv_heads: int, layers: int, billions: float, gpu: str, gpus: int, context: int, concurrency: int
) -> None:
    model = a_model(layers, 128 * heads, heads, kv_heads, int(billions * 1e9))
    found = planned(model, files(model), a_tier(gpu, gpus), context_length=context, concurrency=concurrency)
    if found.choice is None:
        return
    layout = found.choice.layout
    device = gpu_by_name(gpu)
    assert device is not None
    assert 1 <= layout.devices <= gpus
    assert layout.tensor_parallel * layout.pipeline_parallel == layout.devices
    assert dividing(model, layout.tensor_parallel) is None
    assert layout.pipeline_parallel <= model.layers
    assert model.parameters * 2 <= found.choice.memory.weights * 1.02
    assert found.choice.memory.total <= device.usable * layout.devices
