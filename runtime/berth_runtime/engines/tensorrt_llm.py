"""TensorRT-LLM: `trtllm-serve` with its PyTorch backend on a port of loopback, behind our door."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Final

from berth_runtime.config import TRTLLM_SERVE, Setting
from berth_runtime.engines.engine import MODEL_UNREADABLE, OUT_OF_MEMORY, Capabilities
from berth_runtime.engines.gated import GATE_RULES, GatedEngine
from berth_runtime.engines.options import require
from berth_runtime.engines.prometheus import fraction, samples, whole
from berth_runtime.lines import Rule
from berth_runtime.prepare import model_folder, work_folder
from berth_runtime.servers.gate import INNER_PORT
from berth_runtime.spec import EngineMetrics, LaunchSpec

_OPTIONS_FILE: Final = "options.yaml"

_RULES: Final = (
    *GATE_RULES,
    Rule(r"Error: No such option: --[a-z_]+.*", "trtllm-serve does not know one of its arguments", "engine_too_old"),
    Rule(r".*torch\.(?:cuda\.)?OutOfMemoryError: .*", "out of memory", OUT_OF_MEMORY),
    Rule(r".*Executor creation failed due to insufficient GPU memory\..*", "out of memory", OUT_OF_MEMORY),
    Rule(
        r".*\w*Error: Unknown architecture for AutoModelForCausalLM: \w+",
        "TensorRT-LLM does not know this model",
        MODEL_UNREADABLE,
    ),
    Rule(
        r".*Allocated (?P<gib>[\d.]+) GiB for max tokens in paged KV cache \((?P<tokens>\d+)\)\.",
        "room in the KV cache: {tokens} tokens, {gib} GiB",
    ),
)


class TensorRtLlm(GatedEngine):
    name: ClassVar[str] = "tensorrt_llm"
    program: ClassVar[str] = "trtllm-serve"
    setting: ClassVar[Setting] = TRTLLM_SERVE
    metrics_path: ClassVar[str | None] = "/metrics"  # the door's, with TensorRT-LLM's own behind them
    rules: ClassVar[tuple[Rule, ...]] = _RULES
    by_socket: ClassVar[bool] = False
    inner_ports: ClassVar[bool] = True

    def capabilities(self) -> Capabilities:
        return Capabilities(
            formats=("safetensors",),
            endpoints=("chat/completions", "completions"),  # it would keep what is asked over /v1/responses
            stream_usage=True,
            running_usage=True,
            stops_on_disconnect=True,
            json_schema=True,
            tools=True,
            tensor_parallel=True,
            metrics=("running", "queued", "ttft_seconds", "ttft_count", "kv_usage"),
        )

    def version(self) -> str:
        return f"TensorRT-LLM at {self.found()}"

    def command(self, spec: LaunchSpec) -> list[str]:
        require(spec, self.name, *_KNOWN)
        return self.gated(spec, [self.found(), str(model_folder(spec)), *arguments(spec)])

    def door(self, spec: LaunchSpec) -> dict[str, object]:
        more = {"inner_port": 0, "slots": spec.slots, "inner_metrics": "/prometheus/metrics/"}
        return super().door(spec) | more

    def files(self, spec: LaunchSpec) -> dict[str, bytes]:
        return {_OPTIONS_FILE: json.dumps(options(spec), indent=1).encode() + b"\n"}

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        own = {
            "TRTLLM_RESPONSES_API_DISABLE_STORE": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "DO_NOT_TRACK": "1",
            "TLLM_LOG_LEVEL": "INFO",
            "TRTLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": str(spec.threads),
        }
        return self.base_environment(spec) | own

    def lists(self, spec: LaunchSpec, answer: bytes) -> bool:
        """It calls a model after its folder, and looks at no request's."""
        folder = json.dumps(model_folder(spec).name).encode()
        return super().lists(spec, answer.replace(folder, json.dumps(spec.model_alias).encode()))

    def metrics(self, text: str) -> EngineMetrics:
        found = samples(text)
        return EngineMetrics(
            running=whole(found, "berth_door_requests_running"),
            queued=whole(found, "berth_door_requests_waiting"),
            kv_usage=fraction(found, "trtllm_kv_cache_utilization"),
            ttft_seconds=fraction(found, "trtllm_time_to_first_token_seconds_sum"),
            ttft_count=whole(found, "trtllm_time_to_first_token_seconds_count"),
        )


_KNOWN: Final = (
    *("tensor_parallel", "pipeline_parallel", "quantization", "kv_dtype", "max_batched_tokens"),
    *("tool_parser", "reasoning_parser"),
)


def arguments(spec: LaunchSpec) -> list[str]:
    """What follows `trtllm-serve FOLDER`. There is no switch for remote code: it is off unless asked for."""
    said = [
        *("--host", "127.0.0.1"),
        *("--port", INNER_PORT),
        *("--backend", "pytorch"),
        *("--log_level", "info"),
        *("--max_seq_len", str(spec.context_length)),
        *("--max_batch_size", str(spec.slots)),
        *("--tp_size", str(spec.tensor_parallel)),
        *("--pp_size", str(spec.pipeline_parallel)),
        *("--extra_llm_api_options", str(work_folder(spec) / _OPTIONS_FILE)),
    ]
    if spec.max_batched_tokens:
        said += ["--max_num_tokens", str(spec.max_batched_tokens)]
    if spec.tool_parser:
        said += ["--tool_parser", spec.tool_parser]
    if spec.reasoning_parser:
        said += ["--reasoning_parser", spec.reasoning_parser]
    return said


def options(spec: LaunchSpec) -> dict[str, Any]:
    """What can be said in its file only. JSON is YAML too."""
    cache: dict[str, Any] = {"enable_block_reuse": spec.prefix_cache}
    if spec.kv_dtype:
        cache["dtype"] = spec.kv_dtype
    if spec.memory_fraction is not None:
        cache["free_gpu_memory_fraction"] = spec.memory_fraction
    told: dict[str, Any] = {"return_perf_metrics": True, "enable_iter_perf_stats": True, "kv_cache_config": cache}
    if spec.quantization:
        told["quant_config"] = {"quant_algo": spec.quantization.upper()}
    return told
