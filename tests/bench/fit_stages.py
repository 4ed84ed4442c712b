"""What is fitted to what: for each engine, its numbers and the metrics that decide them."""

from __future__ import annotations

from typing import Any, NamedTuple

OUTLIERS = {"QW25-208", "QW25-213"}  # slow outliers, by the data's own README
OUTLIER_PREFILLS = {("XJD", "A100 SXM 80GB", "F16"), ("XJD", "L40S 48GB", "F16")}

SPEED = (
    "decode_tok_s_per_user", "decode_tok_s_total", "output_tok_s_total", "output_tok_s", "output_tok_s_per_gpu", "tpot_ms",
    "itl_median_ms", "itl_intercept_ms", "itl_slope_ms_per_ctx_token", "prompt_plus_output_tok_s", "mlperf_offline_output_tok_s",
)  # fmt: skip
PREFILL = ("prefill_tok_s", "prompt_step_latency_ms")


class Stage(NamedTuple):
    name: str
    engines: tuple[str, ...]
    metrics: tuple[str, ...]
    parameters: tuple[str, ...]
    sources: tuple[str, ...] = ()  # none: all
    rounds: int = 40
    devices: str = ""  # part of the hardware's name; empty: all

    def takes(self, point: Any) -> bool:
        if point.id in OUTLIERS or point.engine not in self.engines or point.metric not in self.metrics:
            return False
        if point.metric == "prefill_tok_s" and (point.source_key, point.gpu, point.quant) in OUTLIER_PREFILLS:
            return False
        if self.devices not in point.gpu:
            return False
        return not self.sources or point.source_key in self.sources

    def most(self, name: str) -> float:
        """Nothing beats the hardware."""
        return 0.98 if name.endswith(("_efficiency", "_mfu")) else 1e9


def _of(section: str, names: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names.split())


STAGES = (
    Stage(
        "vllm", ("vllm",), SPEED,
        _of("vllm", "weights_efficiency.hbm kv_efficiency.hbm decode_mfu.fp16 decode_mfu.fp8 layer_us step_us sequence_us collective_us"
            " collective_growth link_efficiency prefill_mfu.fp16 prefill_mfu.fp8 attention_mfu prefill_collectives"),
        sources=("AIC", "SLY"),
    ),
    Stage(
        "vllm_experts", ("vllm",), SPEED, _of("vllm", "expert_layer_us.default expert_bandwidth.default"),
        sources=("VBL",), devices="H100",
    ),
    Stage(
        "vllm_intel", ("vllm",), SPEED, _of("vllm", "weights_efficiency.intel-gddr expert_layer_us.intel-gddr"),
        sources=("VBL",), devices="Intel",
    ),
    Stage(
        "tensorrt_llm", ("tensorrt_llm",), SPEED,
        _of("tensorrt_llm", "weights_efficiency.hbm weights_efficiency.gddr kv_efficiency.hbm kv_efficiency.gddr decode_mfu.fp8"
            " decode_mfu.fp4"
            " layer_us step_us sequence_us expert_layer_us collective_us collective_growth collective_pcie link_efficiency"
            " prefill_mfu.fp8"
            " prefill_mfu.fp4 prefill_mfu.gddr-fp4 attention_mfu prefill_collectives expert_mfu reserved_output stage_us"
            " prefill_blocking overlap"
            " expert_decode max_sequences"),
        sources=("AIC", "TRTA"),
    ),
    Stage(
        "tensorrt_llm_v0", ("tensorrt_llm_v0",), SPEED,
        _of("tensorrt_llm_v0", "decode_mfu.fp16 decode_mfu.fp8 layer_us sequence_us prefill_mfu.fp16"
            " prefill_mfu.fp8"
            " kv_efficiency.hbm reserved_output"),
    ),
    Stage(
        "vllm_v0", ("vllm_v0",), SPEED,
        _of("vllm_v0", "weights_efficiency.hbm weights_efficiency.gddr weights_efficiency.hbm-unpacked"
            " weights_efficiency.gddr-unpacked layer_us"
            " step_us collective_us collective_pcie attention_mfu"),
    ),
    Stage(
        "sglang", ("sglang",), SPEED,
        _of("sglang", "weights_efficiency.h20 weights_efficiency.h20-unpacked layer_us.h20 expert_layer_us.h20"
            " expert_layer_us.h20-unpacked collective_us.h20"),
    ),
    Stage(
        "llamacpp", ("llamacpp", "llamacpp_2024", "llamacpp_vulkan"), SPEED,
        _of("llamacpp", "weights_efficiency.gddr weights_efficiency.hbm clock_bytes weights_efficiency.apple weights_efficiency.amd-gddr"
            " weights_efficiency.unified weights_efficiency.cpu weights_efficiency.cpu-arm weights_efficiency.cpu-server-ampere"
            " weights_efficiency.cpu-small weights_efficiency.cpu-old weights_efficiency.cpu-riscv decode_mfu.apple-kquant kv_efficiency"
            " layer_us split_us")
        + _of("llamacpp_2024", "layer_us")
        + _of("llamacpp_vulkan", "weights_efficiency.gddr weights_efficiency.amd-gddr weights_efficiency.intel-gddr layer_us"),
    ),
    Stage(
        "llamacpp_v0", ("llamacpp_v0",), SPEED,
        _of("llamacpp_v0", "weights_efficiency.gddr weights_efficiency.hbm weights_efficiency.gddr-unpacked"
            " weights_efficiency.hbm-unpacked"
            " layer_us collective_us"),
    ),
    Stage(
        "llamacpp_prefill", ("llamacpp", "llamacpp_2024"), PREFILL,
        _of("llamacpp", "prefill_mfu.hbm prefill_mfu.gddr prefill_mfu.apple prefill_mfu.apple-kquant prefill_layer_us"
            " attention_mfu.gddr split_prefill")
        + _of("llamacpp_2024", "unpacks.gddr unpacks.hbm"),
    ),
    Stage(
        "tensorrt_llm_mlperf", ("tensorrt_llm",), ("mlperf_offline_output_tok_s",),
        _of("tensorrt_llm_mlperf", "prefill_mfu.fp8 decode_mfu.fp8"), sources=("MLP",),
    ),
    Stage("transformers", ("transformers", "transformers_v0"), SPEED, _of("transformers", "weights_efficiency.hbm"
            " weights_efficiency.hbm-unpacked layer_us step_us")),
    Stage("autoawq", ("autoawq",), SPEED, _of("autoawq", "weights_efficiency.gddr-unpacked layer_us kv_efficiency decode_mfu split_us")),
    Stage("autoawq_gemv", ("autoawq_gemv",), SPEED, _of("autoawq_gemv", "weights_efficiency.default layer_us decode_mfu")),
    Stage("autoawq_gemv_prefill", ("autoawq_gemv",), PREFILL, _of("autoawq_gemv", "prefill_mfu.default")),
    Stage("autoawq_prefill", ("autoawq",), PREFILL, _of("autoawq", "prefill_mfu.gddr prefill_layer_us")),
    Stage("autoawq_ipex", ("autoawq_ipex",), SPEED, _of("autoawq_ipex", "weights_efficiency.cpu-server kv_efficiency layer_us")),
    Stage("exllama", ("exllama",), SPEED, _of("exllama", "weights_efficiency.gddr clock_bytes layer_us")),
    Stage("exllamav2", ("exllamav2",), SPEED, _of("exllamav2", "weights_efficiency.gddr clock_bytes layer_us step_us")),
    Stage("mlc", ("mlc",), SPEED, _of("mlc", "weights_efficiency.gddr clock_bytes layer_us collective_us")),
    Stage("onnxruntime", ("onnxruntime",), PREFILL, _of("onnxruntime", "prefill_mfu.fp16 prefill_layer_us")),
    Stage("pytorch", ("pytorch",), PREFILL, _of("pytorch", "prefill_mfu.fp16 prefill_layer_us")),
)  # fmt: skip
