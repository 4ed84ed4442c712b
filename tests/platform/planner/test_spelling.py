"""Files of measurements from elsewhere: other spellings, other units, other cards, gaps and rubbish. What physics can answer is."""

from __future__ import annotations

import csv
import io
import math
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.planner.answers import HANDLERS, Unanswerable, answer
from berth.planner.catalogue import model_by_name, size_in_name
from berth.planner.evaluate import Report, as_json, evaluate, text
from berth.planner.hardware import all_gpus, gpu_by_name
from berth.planner.measurements import COLUMNS, Measurement, read_measurements
from berth.planner.metrics import canonical
from berth.planner.quantization import scheme

TRUTH = Path(__file__).parents[2] / "data" / "planner" / "planner_truth.csv"
GPUS = {
    "H100 80GB": ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB", "nvidia h100 sxm5", "H100 SXM 80G"),
    "H100 SXM": ("NVIDIA H100 80GB HBM3", "H100-80GB-SXM5"),
    "A100 80GB": ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "A100 80G", "a100_80gb"),
    "A100 SXM 80GB": ("NVIDIA A100-SXM4-80GB",),
    "A100 PCIe 80GB": ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
    "RTX 4090": ("NVIDIA GeForce RTX 4090", "RTX4090", "RTX-4090 24GB", "geforce rtx 4090"),
    "4090 24GB": ("RTX4090", "Nvidia RTX 4090 (24 GB)"),
    "L40S 48GB": ("NVIDIA L40S",),
    "RTX 6000 Ada 48GB": ("NVIDIA RTX 6000 Ada Generation", "RTX6000 Ada"),
    "RTX A6000 48GB": ("NVIDIA RTX A6000", "A6000"),
    "B200": ("NVIDIA B200", "B200-SXM-180GB"),
    "M2 Ultra 76-Core GPU 192GB": ("Apple M2 Ultra (76-core GPU) 192GB",),
}
MODELS = {
    "Llama-3.1-8B": ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1:8b", "Meta-Llama-3.1-8B", "Llama 3.1 8B Instruct"),
    "Llama-3-8B": ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b", "LLaMA 3 8B"),
    "Llama-3-70B": ("meta-llama/Meta-Llama-3-70B", "llama3:70b", "Llama 3 70B Instruct"),
    "Llama 3.3 70B": ("nvidia/Llama-3.3-70B-Instruct-FP8", "llama-3.3-70b"),
    "Qwen3-32B": ("Qwen/Qwen3-32B", "qwen3:32b"),
    "Qwen2.5-7B-Instruct": ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5:7b", "qwen2.5-7b"),
    "Mistral 7B": ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b-v0.1"),
}
RUNTIMES = {
    "llama.cpp": ("llama-bench", "llama_cpp", "ggml-org/llama.cpp"),
    "TensorRT-LLM": ("trtllm", "TRT-LLM", "NVIDIA TensorRT LLM"),
    "vLLM": ("vllm", "VLLM V1"),
}
QUANTS = {"Q4_K_M": ("q4_k_m", "Q4_K - Medium"), "FP8": ("fp8", "FP8 W8A8", "fp8-dynamic", "w8a8-fp8"), "BF16": ("bfloat16",),
          "F16": ("fp16", "float16")}  # fmt: skip


@cache
def rows() -> tuple[dict[str, str], ...]:
    with TRUTH.open(newline="", encoding="utf-8") as lines:
        return tuple(csv.DictReader(lines))


def read(*changed: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> list[Measurement]:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(changed)
    return read_measurements(io.StringIO(out.getvalue()))


def predicted(row: dict[str, str]) -> float | str:
    try:
        return answer(read(row)[0]).value
    except Unanswerable as why:
        return str(why)


@pytest.mark.parametrize(
    ("column", "names"), [("gpu", GPUS), ("model", MODELS), ("runtime", RUNTIMES), ("quant", QUANTS)]
)
def test_another_spelling_of_the_same_thing_has_the_same_answer(column: str, names: dict[str, tuple[str, ...]]) -> None:
    for name, spellings in names.items():
        some = [row for row in rows() if row[column] == name and row["kind"] in ("throughput", "latency", "memory")]
        assert some, name
        for row in some[:: max(1, len(some) // 3)]:
            for spelling in spellings:
                other = predicted(row | {column: spelling})
                assert other == pytest.approx(predicted(row)), (row["id"], spelling)


@pytest.mark.parametrize(
    ("metric", "unit", "times", "other", "other_unit"),
    [
        ("ttft_ms", "ms", 1e-3, "time_to_first_token_s", "s"),
        ("ttft_ms", "ms", 1.0, "mean_ttft_ms", "ms"),
        ("tpot_ms", "ms", 1e-3, "TPOT", "s"),
        ("tpot_ms", "ms", 1.0, "mean_itl_ms", "ms"),
        ("output_tok_s_total", "tok/s", 1.0, "output_throughput", "tok/s"),
        ("decode_tok_s_per_user", "tok/s", 1.0, "tg128", "t/s"),
        ("prefill_tok_s", "tok/s", 1.0, "pp512", "t/s"),
        ("weight_memory_per_gpu", "GiB", 1.0, "model_weights_gib", "GiB"),
        ("kv_cache_capacity", "tokens", 1.0, "kv_cache_tokens", "tokens"),
        ("gguf_file_size", "GiB", 1.0, "file_size_gib", "GiB"),
    ],
)
def test_another_name_or_unit_of_a_metric_has_the_same_answer(
    metric: str, unit: str, times: float, other: str, other_unit: str
) -> None:
    some = (row for row in rows() if row["metric"] == metric and row["unit"].startswith(unit[:2]))
    row, same = next((row, value) for row in some if isinstance(value := predicted(row), float))
    changed = predicted(row | {"metric": other, "unit": other_unit if other_unit != unit else row["unit"]})
    assert changed == pytest.approx(same * times, rel=0.05)


def test_numbers_as_people_write_them() -> None:
    base = next(row for row in rows() if row["metric"] == "tpot_ms" and row["input_tokens"] == "1024")
    odd = base | {"input_tokens": "1,024", "params_b": "8B", "gpu_count": "", "value": "~1.2e1"}
    (point,) = read(odd)
    assert (point.input, point.billions, point.value) == (1024, 8.0, 12.0)
    (point,) = read(base | {"gpu": "8x H100 SXM", "gpu_count": "", "tensor_parallel": ""})
    assert point.gpus == 8
    assert gpu_by_name(point.gpu) is not None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"), ("NVIDIA A100-SXM4-40GB", "a100-40gb"), ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("AMD Instinct MI300X", "mi300x"), ("8xMI300X", "mi300x"), ("7900XTX", "rx-7900-xtx"), ("RTX 4090 Laptop GPU", "rtx-4090-laptop"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"), ("V100 PCIe 16GB", "v100-16gb"), ("Apple M3 Max 30-core GPU", "m3-max-30"),
        ("AMD EPYC 7763", "epyc-7002"), ("2x EPYC 9654", "epyc-9004"), ("Intel Xeon Platinum 8490H", "xeon-spr-48"), ("g5.xlarge", "a10g"),
        ("GH200 480GB", "gh200"), ("RTX 4070 Ti SUPER", "rtx-4070-ti-super"), ("Gaudi2", "gaudi2"), ("H200 NVL", "h200-nvl"),
    ],
)  # fmt: skip
def test_cards_and_processors_by_the_names_that_drivers_and_people_give_them(name: str, key: str) -> None:
    found = gpu_by_name(name)
    assert found is not None
    assert found.key == key


@pytest.mark.parametrize("name", ["M5 Max", "RTX 6000", "a card", "", "A100 or H100"])
def test_a_name_that_goes_on_or_means_two_is_not_taken_for_the_shorter_one(name: str) -> None:
    assert gpu_by_name(name) is None


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("dolphin-2.5-mixtral-8x7b", 46.7), ("Hermes-3-Llama-3.1-8B", 8.03), ("unsloth/Llama-3.2-1B-Instruct-GGUF", 1.24),
        ("mistralai/Mistral-7B-Instruct-v0.3", 7.25), ("c4ai-command-r-08-2024", 32.3), ("gemma3:4b", 4.3), ("Qwen2.5-Math-7B", 7.6),
        ("nvidia/DeepSeek-R1-0528-FP4", 671.0), ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", 70.6),
    ],
)  # fmt: skip
def test_models_by_the_names_that_hubs_and_tools_give_them(name: str, billions: float) -> None:
    found = model_by_name(name)
    assert found is not None
    assert found.parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_size_in_a_name_is_enough_for_an_answer_with_wider_margins() -> None:
    assert size_in_name("Ernie-4.5-21B-A3B") == (21.0, "MoE 3B active")
    assert size_in_name("SomeLM-350M") == (0.35, "")
    assert size_in_name("no size") is None
    row = next(row for row in rows() if row["metric"] == "tpot_ms")
    found = answer(read(row | {"model": "Never-Seen-9B", "params_b": ""})[0])
    assert found.value > 0
    assert "only the size is known" in found.assumed[0]


@pytest.mark.parametrize(
    "name",
    [
        "F8_E4M3",
        "half",
        "W4A8KV4",
        "EETQ",
        "none",
        "n/a",
        "UD-Q4_K_XL",
        "MLX 4bit",
        "bitsandbytes 4bit",
        "MXFP8",
        "3bit",
    ],
)
def test_weight_formats_by_other_names(name: str) -> None:
    assert scheme(name, engine="llamacpp" if name.startswith("UD") else "vllm") is not None


def checked(report: Report, points: int) -> None:
    assert len(report.answered) + len(report.unanswered) == report.points == points
    for item in report.answered:
        assert math.isfinite(item.answer.value)
        assert item.answer.value >= 0
    assert all(why for _, why in report.unanswered)
    as_json(report)
    text(report)


@given(gpu=st.sampled_from(sorted(all_gpus())), start=st.integers(0, 40))
@settings(max_examples=6, deadline=None)
def test_on_any_other_card_every_point_has_an_answer_or_a_reason(gpu: str, start: int) -> None:
    moved = [row | {"gpu": gpu} for row in rows()[start::41]]
    checked(evaluate(read(*moved)), len(moved))


rubbish = st.text(max_size=12) | st.sampled_from(
    [
        "",
        " ",
        "0",
        "-1",
        "1e400",
        "nan",
        "inf",
        "NaN",
        "8x",
        "1,000",
        "1/2",
        "H100",
        "Q4_K_M",
        "FP8 KV",
        "max",
        "GiB",
        "s",
        "∞",
        "x7",
        "0.5",
    ]
)


@given(
    start=st.integers(0, 1_700),
    fields=st.dictionaries(st.sampled_from(COLUMNS), rubbish, min_size=1, max_size=6),
)
@settings(max_examples=80, deadline=None)
def test_rubbish_in_any_field_is_answered_or_listed(start: int, fields: dict[str, str]) -> None:
    changed = [row | fields for row in rows()[start : start + 3]]
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS)
    writer.writeheader()
    writer.writerows(changed)
    checked(evaluate(read_measurements(io.StringIO(out.getvalue()))), len(changed))


@given(left=st.sets(st.sampled_from(sorted(set(COLUMNS) - {"model", "metric", "value"})), min_size=1))
@settings(max_examples=8, deadline=None)
def test_columns_that_are_not_there_are_not_stated(left: set[str]) -> None:
    columns = tuple(name for name in COLUMNS if name not in left)
    some = rows()[::97]
    checked(evaluate(read(*some, columns=columns)), len(some))


def test_headers_of_any_case_and_more_columns_than_known() -> None:
    lines = TRUTH.read_text(encoding="utf-8").splitlines()[:30]
    heading = "\ufeff" + lines[0].upper().replace("_", " ") + ",remark"
    points = read_measurements(io.StringIO("\n".join([heading, *lines[1:]])))
    assert points == read_measurements(io.StringIO("\n".join(lines)))


def test_names_that_are_known_stay_and_unknown_ones_are_not_guessed_at() -> None:
    answer(read(rows()[0])[0])  # handlers register themselves
    for metric in HANDLERS:
        assert canonical(metric, frozenset(HANDLERS), concurrent=True) == metric
    assert canonical("smell", frozenset(HANDLERS), concurrent=False) == "smell"
