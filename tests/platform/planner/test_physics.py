"""The planner's arithmetic in cases that can be checked by hand or against published numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.planner.architecture import facts_from_config
from berth.planner.catalogue import known_models, model_by_name, model_by_size, normalised
from berth.planner.coefficients import coefficients
from berth.planner.hardware import GIB, all_gpus, gpu_by_name
from berth.planner.headers import elements, header
from berth.planner.placement import Placement, kv_read_bytes, kv_token_bytes
from berth.planner.pool import Limits, activations, kv_token_bytes_per_device, parts, sequence_tokens
from berth.planner.quality import perplexity_loss, score_loss
from berth.planner.quantization import scheme
from berth.planner.queueing import BURST, STEADY, Server, first_token, simulate
from berth.planner.serving import Load, steady
from berth.planner.step import decode_step, prefill
from berth.planner.weights import covered_experts, weights

DATA = Path(__file__).parents[2] / "data" / "planner"
CONFIGS = json.loads((DATA / "model_configs.json").read_text(encoding="utf-8"))["models"]


def placed(name: str, quant: str, gpu: str, *, engine: str = "vllm", tp: int = 1) -> Placement:
    model, device, chosen = model_by_name(name), gpu_by_name(gpu), scheme(quant, engine=engine)
    assert model is not None
    assert device is not None
    assert chosen is not None
    return Placement(
        model=model, scheme=chosen, held=weights(model, chosen), engine=engine, coefficients=coefficients(engine), gpu=device,
        tensor_parallel=tp,
    )  # fmt: skip


@pytest.mark.parametrize("key", sorted(key for key, config in CONFIGS.items() if config.get("derived")))
def test_parameters_and_cache_follow_from_the_configuration(key: str) -> None:
    config = CONFIGS[key]
    facts = facts_from_config(config)
    assert facts.parameters == pytest.approx(config["derived"]["params_total"], rel=1e-3)
    assert kv_token_bytes(facts) == config["derived"]["kv_bytes_per_token_2byte"]
    assert facts.active_parameters <= facts.parameters
    assert not facts.assumed


def test_a_configuration_without_a_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="does not say"):
        facts_from_config({"architectures": ["LlamaForCausalLM"]})


def test_an_architecture_that_is_not_known_says_so() -> None:
    facts = facts_from_config(
        {
            "architectures": ["NewForCausalLM"],
            "hidden_size": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "vocab_size": 1000,
        }
    )
    assert "NewForCausalLM" in facts.assumed[0]


@pytest.mark.parametrize(
    ("name", "quant", "size"),
    [
        ("llama-3.1-8b", "Q4_K_M", 4.58), ("llama-3.1-8b", "Q2_K", 2.95), ("llama-3.1-8b", "IQ1_S", 1.87), ("llama-3.1-8b", "Q6_K", 6.14),
        ("llama-3-70b", "Q4_K_M", 39.59), ("llama-3-70b", "Q3_K_M", 31.91),
        ("llama-3-70b", "Q5_K_M", 46.52), ("llama-3-70b", "F16", 131.42),
    ],
)  # fmt: skip
def test_a_gguf_files_size_is_known_before_it_is_made(name: str, quant: str, size: float) -> None:
    model, chosen = model_by_name(name), scheme(quant, engine="llamacpp")
    assert model is not None
    assert chosen is not None
    assert weights(model, chosen).total / GIB == pytest.approx(size, rel=2.5e-3)


@given(experts=st.integers(2, 512), share=st.floats(0.01, 1), tokens=st.floats(0, 10_000))
@settings(max_examples=100)
def test_a_batch_touches_between_one_tokens_experts_and_all(experts: int, share: float, tokens: float) -> None:
    each = max(1, int(share * experts))
    touched = covered_experts(experts, each, tokens)
    assert 0 <= touched <= experts + 1e-6
    assert covered_experts(experts, each, 1) == pytest.approx(each)
    assert covered_experts(experts, each, tokens + 1) >= touched


def test_latent_attention_keeps_one_vector_for_all_heads_on_every_device() -> None:
    place = placed("deepseek-v3", "FP8", "H200", tp=8)
    assert kv_token_bytes(place.model) == 61 * 576 * 2
    assert kv_token_bytes_per_device(place) == 61 * 576 * 2


def test_windows_stop_growing_and_pages_pad_mixed_layers() -> None:
    gemma = placed("gemma-3-27b", "BF16", "H100")
    assert kv_token_bytes_per_device(gemma) / kv_token_bytes(gemma.model) == pytest.approx(70 / 62)
    assert sequence_tokens(gemma, 100_000, 8192) < 25_000
    mistral = placed("gpt-oss-20b", "MXFP4", "H100")
    assert kv_read_bytes(mistral.model, 20_000) == pytest.approx(12 * 2 * 8 * 64 * 2 * (20_000 + 128))


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("llama-3.1-8b", 1.89),
        ("qwen2.5-7b", 2.21),
        ("gemma-7b", 3.63),
        ("granite-3.1-8b", 0.85),
        ("codellama-7b", 0.77),
    ],
)
def test_the_trial_runs_peak_is_the_logits_or_the_widest_block(name: str, gib: float) -> None:
    assert activations(placed(name, "BF16", "H100"), Limits(1024, 8192)) / GIB == pytest.approx(gib, rel=0.05)


def test_fewer_kv_heads_than_devices_are_copied() -> None:
    two, eight = placed("qwen2.5-7b", "BF16", "H100", tp=2), placed("qwen2.5-7b", "BF16", "H100", tp=4)
    assert kv_token_bytes_per_device(eight) == kv_token_bytes_per_device(two) / 2
    sixteen = placed("qwen2.5-3b", "BF16", "H100", tp=4)
    assert kv_token_bytes_per_device(sixteen) == kv_token_bytes(sixteen.model) / 2
    limits = Limits(256, 2048)
    assert parts(two, limits).weights > parts(eight, limits).weights > parts(two, limits).weights / 2


places = st.builds(
    placed,
    st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b", "gemma-2-9b", "deepseek-v3"]),
    st.sampled_from(["BF16", "FP8"]),
    st.sampled_from(["H100", "L40S", "MI300X"]),
    tp=st.sampled_from([1, 2, 4, 8]),
)


@given(place=places, batch=st.integers(1, 512), context=st.integers(1, 30_000))
@settings(max_examples=60, deadline=None)
def test_more_to_do_never_takes_less_time(place: Placement, batch: int, context: int) -> None:
    assert 0 < decode_step(place, batch, context) <= decode_step(place, batch + 1, context)
    assert decode_step(place, batch, context) <= decode_step(place, batch, context + 1)
    assert prefill(place, context) <= prefill(place, context + 1)
    # No step is faster than reading every weight it touches at the data sheet's bandwidth.
    assert decode_step(place, batch, context) > place.held.dense / place.tensor_parallel / place.gpu.bandwidth


@given(place=places, users=st.integers(1, 60), prompt=st.integers(1, 3_000), reply=st.integers(1, 300))
@settings(max_examples=25, deadline=None)
def test_a_queue_serves_everyone_and_nobody_before_a_prefill(
    place: Placement, users: int, prompt: int, reply: int
) -> None:
    server = Server(200_000, 256, 8192)
    for start in (STEADY, BURST):
        waits = simulate(place, Load(prompt, reply, users), server, start=start)
        assert len(waits.times) == 3 * users
        assert waits.times[0] >= min(first_token(place, prompt), prefill(place, min(prompt, 8192)) * 0.5)
        assert simulate(place, Load(prompt, reply, users), server, start=start) == waits


def test_a_cache_that_is_too_small_makes_requests_wait_and_not_run() -> None:
    place = placed("llama-3.1-8b", "BF16", "H100")
    load = Load(1_000, 200, 64)
    roomy = simulate(place, load, Server(200_000, 256, 8192), start=STEADY)
    tight = simulate(place, load, Server(20_000, 256, 8192), start=STEADY)
    assert tight.mean > 3 * roomy.mean
    few, many = (steady(place, load, cache_tokens=tokens) for tokens in (20_000.0, 200_000.0))
    assert few.running < many.running == 64
    assert few.throughput < many.throughput


def test_names_are_recognised_in_the_ways_people_write_them() -> None:
    for name in ("meta-llama/Llama-3.1-8B-Instruct", "Meta-Llama-3.1-8B", "llama3.1:8b", "Llama 3.1 8B"):
        assert normalised(name) == "llama-3.1-8b"
    assert normalised("LLaMA 70B") == "llama-70b"
    for name, key in (
        ("Qwen 2.5-14B", "qwen2.5-14b"), ("Qwen-7B-Chat", "qwen-7b"), ("qwen3:8b", "qwen3-8b"), ("DeepSeek R1:14b", "qwen2.5-14b"),
        ("gpt-oss:20b", "gpt-oss-20b"), ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.1-70b"), ("Mixtral 46.7B", "mixtral-8x7b"),
        ("Mistral-Large-Instruct-2411", "mistral-large-2407"), ("command-r-08-2024", "command-r-08-2024"), ("Qwen 1.8B", "qwen-1.8b"),
    ):  # fmt: skip
        assert model_by_name(name) == model_by_name(key) is not None, name
    assert model_by_name("no-such-model-9000b") is None
    for name, key in (
        ("NVIDIA H200-SXM-141GB", "h200"), ("4090 24GB", "rtx-4090"), ("A100 PCIe 80GB", "a100-80gb-pcie"), ("H100", "h100-80gb-sxm"),
        ("M2 Ultra 76-Core GPU 192GB", "m2-ultra"), ("Intel 265K Custom PC (Nvidia RTX 4090)", "rtx-4090"),
    ):  # fmt: skip
        found = gpu_by_name(name)
        assert found is not None, name
        assert found.key == key
    assert gpu_by_name("8xH100 or 8xA100 (page says either)") is None
    assert gpu_by_name("an abacus") is None


def test_every_model_and_device_of_the_tables_is_whole() -> None:
    for name in known_models():
        model = model_by_name(name)
        assert model is not None
        assert 0 < model.active_parameters <= model.parameters
        assert not model.assumed
    for gpu in all_gpus().values():
        assert 0 < gpu.usable <= gpu.memory * 1.1
        assert gpu.bandwidth > 1e9
        assert gpu.peak("fp4") >= gpu.flops["fp16"]


def test_only_a_size_gives_the_usual_shape_and_says_so() -> None:
    facts = model_by_size(8.0, "dense GQA")
    assert facts.parameters == pytest.approx(8e9)
    assert facts.assumed
    experts = model_by_size(235.0, "MoE 22B active")
    assert (experts.parameters, experts.active_parameters) == (pytest.approx(235e9), pytest.approx(22e9))
    assert 0 < experts.expert_parameters < experts.parameters


def test_fewer_bits_never_lose_less() -> None:
    losses = [perplexity_loss(bits / 10) for bits in range(15, 170)]
    assert losses == sorted(losses, reverse=True)
    small, large = model_by_name("qwen2.5-0.5b"), model_by_name("qwen2.5-72b")
    assert small is not None
    assert large is not None
    for quant in ("GPTQ-Int4", "FP8", "Q4_K_M"):
        chosen = scheme(quant)
        assert chosen is not None
        assert score_loss(small, chosen) > score_loss(large, chosen) > 0


def test_only_the_header_of_a_safetensors_file_is_read() -> None:
    tensors = {
        "a": {"dtype": "BF16", "shape": [4, 8]},
        "a_scale": {"dtype": "F32", "shape": [4]},
        "__metadata__": {"format": "pt"},
    }
    raw = json.dumps(tensors).encode()
    content = len(raw).to_bytes(8, "little") + raw
    asked: list[tuple[int, int]] = []

    def read(offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return content[offset : offset + length]

    assert elements(header(read)) == 32
    assert asked == [(0, 8), (8, len(raw))]
    with pytest.raises(ValueError, match="no sensible length"):
        header(lambda offset, length: b"\xff" * length)
