"""vLLM: `vllm serve` on a Unix socket, behind our door."""

from __future__ import annotations

import json
from typing import ClassVar, Final

import msgspec

from berth_runtime.config import VLLM, Setting
from berth_runtime.engines.engine import MODEL_UNREADABLE, OUT_OF_MEMORY, Capabilities
from berth_runtime.engines.gated import GATE_RULES, GatedEngine, socket_folder, socket_of
from berth_runtime.engines.options import require
from berth_runtime.engines.prometheus import fraction, samples, whole
from berth_runtime.lines import Rule
from berth_runtime.prepare import adapter_folder, model_folder
from berth_runtime.spec import EngineMetrics, LaunchSpec

_GIB: Final = 1 << 30
MASTER_PORT: Final = 29501  # on which the nodes of a replica meet, at rank 0
_MAX_PIXELS: Final = 33_177_600  # of an image: 8K, so that a small file cannot become gigabytes
# The ranks for which vLLM has room; an adapter gets the next larger.
_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
_STAMP: Final = r"(?:\([\w ]+ pid=\d+\) )?(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[\w.]+:\d+\] "
_ANY: Final = r"(?:\([\w ]+ pid=\d+\) )?(?:ERROR \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[\w.]+:\d+\] )?"

_RULES: Final = (
    *GATE_RULES,
    Rule(_STAMP + r"Using max model len (?P<context>\d+)", "context: {context} tokens"),
    Rule(_STAMP + r"Loading weights took (?P<seconds>[\d.]+) seconds", "reading the weights took {seconds} s"),
    Rule(
        _STAMP + r"Model loading took (?P<gib>[\d.]+) GiB(?: memory)? and (?P<seconds>[\d.]+) seconds",
        "the weights take {gib} GiB, loading took {seconds} s",
    ),
    Rule(
        _STAMP + r"\w+ KV cache size: (?P<thousands>\d+),(?P<rest>\d+) tokens.*",
        "room in the KV cache: {thousands}{rest} tokens",
    ),
    Rule(
        _STAMP + r"init engine \([\w ,]+\) took (?P<seconds>[\d.]+) s(?:econds)?.*",
        "making the engine ready took {seconds} s",
    ),
    Rule(_ANY + r"torch\.(?:cuda\.)?OutOfMemoryError: .*", "out of memory", OUT_OF_MEMORY),
    Rule(
        _ANY + r"\w*Error: No available memory for the cache blocks\..*",
        "no memory is left for the KV cache",
        OUT_OF_MEMORY,
    ),
    Rule(
        _ANY + r"\w*Error: (?:To serve at least one request with|The model's max seq len).*",
        "the KV cache has no room for one request of the context length",
        OUT_OF_MEMORY,
    ),
    Rule(_ANY + r"\w*Error: Free memory on device .*", "other programs hold the device's memory", OUT_OF_MEMORY),
    Rule(
        _ANY + r".*(?:Model architectures .* are not supported|Cannot find any model weights|SafetensorError).*",
        "the model's files are incomplete or of a kind that this vLLM does not know",
        MODEL_UNREADABLE,
    ),
)


class Vllm(GatedEngine):
    name: ClassVar[str] = "vllm"
    program: ClassVar[str] = "vllm"
    setting: ClassVar[Setting] = VLLM
    metrics_path: ClassVar[str | None] = "/metrics"
    settings_path: ClassVar[str | None] = "/v1/models"
    rules: ClassVar[tuple[Rule, ...]] = _RULES
    inner_ports: ClassVar[bool] = True  # of several GPUs: torch.distributed, on loopback

    spans_nodes: ClassVar[bool] = True

    def capabilities(self) -> Capabilities:
        return Capabilities(
            formats=("safetensors",),
            endpoints=("chat/completions", "completions", "embeddings", "rerank", "responses", "messages"),
            stream_usage=True,
            running_usage=True,
            stops_on_disconnect=True,
            json_schema=True,
            tools=True,
            adapters=True,
            tensor_parallel=True,
            cache_salt=True,
            embeddings=True,
            metrics=(
                *("running", "queued", "prompt_tokens", "completion_tokens", "kv_usage", "preemptions"),
                *("ttft_seconds", "ttft_count", "steps"),
            ),
        )

    def allowed(self) -> tuple[tuple[str, str], ...]:
        return (*super().allowed(), ("POST", "/tokenize"))

    def version(self) -> str:
        return f"vLLM at {self.found()}"

    def command(self, spec: LaunchSpec) -> list[str]:
        require(spec, self.name, *_KNOWN)
        if spec.node_rank:
            return [self.found(), "serve", str(model_folder(spec)), "--headless", *arguments(spec)]
        return self.gated(spec, [self.found(), "serve", str(model_folder(spec)), *arguments(spec)])

    def prepare(self, spec: LaunchSpec) -> None:
        """On a processor FP8 weights become 16 bits."""
        if not spec.gpus and spec.quantization is None:
            from berth_runtime.engines.sixteen_bits import widen  # numpy: only who needs it waits for it

            widen(model_folder(spec))

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        own = {
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "VLLM_LOGGING_LEVEL": "INFO",
            "VLLM_LOGGING_COLOR": "0",
            "NO_COLOR": "1",
            "VLLM_DISABLE_LOG_LOGO": "1",
            "VLLM_PLUGINS": "",  # installed packages do not join in by themselves
            "VLLM_SERVER_DEV_MODE": "0",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0",
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
            "VLLM_MAX_IMAGE_PIXELS": str(_MAX_PIXELS),
            "VLLM_RPC_BASE_PATH": socket_folder(spec),
            **_together(spec),
            "OMP_NUM_THREADS": str(spec.threads),
        }
        if not spec.gpus:
            gib = max((spec.kv_cache_bytes or _GIB) // _GIB, 1)
            own |= {
                "VLLM_CPU_KVCACHE_SPACE": str(gib),
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                # Else weights of 4 bits get activations of 8 on processors with AMX: not what was measured of these files.
                "VLLM_CPU_INT4_W4A8": "0",
                "TORCHDYNAMO_DISABLE": "1",  # else the first request for probabilities waits for a C++ compiler
                # Threads that wait sleep: spinning takes the core from the one that is waited for.
                "OMP_WAIT_POLICY": "PASSIVE",
                "KMP_BLOCKTIME": "0",
            }
        return self.base_environment(spec) | own

    def metrics(self, text: str) -> EngineMetrics:
        found = samples(text)
        prompt = whole(found, "vllm:prompt_tokens_total")
        generated = whole(found, "vllm:generation_tokens_total")
        return EngineMetrics(
            running=whole(found, "vllm:num_requests_running"),
            queued=whole(found, "vllm:num_requests_waiting"),
            prompt_tokens=prompt,
            completion_tokens=generated,
            kv_usage=fraction(found, "vllm:kv_cache_usage_perc"),
            preemptions=whole(found, "vllm:num_preemptions_total"),
            ttft_seconds=fraction(found, "vllm:time_to_first_token_seconds_sum"),
            ttft_count=whole(found, "vllm:time_to_first_token_seconds_count"),
            steps=whole(found, "vllm:iteration_tokens_total_count"),
        )

    def difference(self, spec: LaunchSpec, settings: bytes) -> str | None:
        try:
            models = msgspec.json.decode(settings, type=_Models).data
        except msgspec.DecodeError:
            return "The engine does not say which settings it runs with."
        if not self.lists(spec, settings):
            return "The engine serves other models than the one and its adapters."
        context = next((model.max_model_len for model in models if model.id == spec.model_alias), None)
        if context != spec.context_length:
            return f"The engine gives each request {context} tokens of context instead of {spec.context_length}."
        return None


_KNOWN: Final = (
    *("adapters", "pooling", "tensor_parallel", "pipeline_parallel", "quantization", "kv_dtype"),
    *("kv_cache_bytes", "max_batched_tokens", "tool_parser", "reasoning_parser"),
)


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def arguments(spec: LaunchSpec) -> list[str]:
    """What follows `vllm serve FOLDER`."""
    return [
        *("--served-model-name", spec.model_alias),
        *(() if spec.node_rank else ("--uds", socket_of(spec))),
        *("--max-model-len", str(spec.context_length)),
        *("--max-num-seqs", str(spec.slots)),
        *_placement(spec),
        *_precision(spec),
        *("--enable-prefix-caching" if spec.prefix_cache else "--no-enable-prefix-caching",),
        *("--prefix-caching-hash-algo", "sha256"),
        *_parsers(spec),
        *_adapters(spec),
        *_pooling(spec),
        *_PRIVATE,
    ]


# Nothing of a request is printed, nothing is fetched, no code or pickle of a model is run, no page but the API is served.
_PRIVATE: Final = (
    "--no-enable-log-requests",
    "--no-enable-log-outputs",
    "--disable-uvicorn-access-log",
    "--disable-fastapi-docs",
    *("--uvicorn-log-level", "warning"),
    "--no-trust-remote-code",
    *("--load-format", "safetensors"),
    *("--generation-config", "vllm"),  # the defaults of sampling are OpenAI's, whatever the model's files say
    *("--allowed-media-domains", "media.invalid"),  # an empty list would allow all
    *("--limit-mm-per-prompt", '{"video": 0}'),
    "--enable-prompt-tokens-details",
)


def _placement(spec: LaunchSpec) -> list[str]:
    said: list[str] = []
    if spec.tensor_parallel > 1:
        said += ["--tensor-parallel-size", str(spec.tensor_parallel)]
    if spec.pipeline_parallel > 1:
        said += ["--pipeline-parallel-size", str(spec.pipeline_parallel)]
    if spec.tensor_parallel * spec.pipeline_parallel > 1:
        said += ["--distributed-executor-backend", "mp"]  # never Ray
    if spec.nodes > 1:
        said += ["--nnodes", str(spec.nodes), "--node-rank", str(spec.node_rank)]
        said += ["--master-addr", spec.leader, "--master-port", str(MASTER_PORT)]
    if not spec.gpus:
        return [*said, "--enforce-eager"]
    if spec.memory_fraction is not None:
        said += ["--gpu-memory-utilization", str(spec.memory_fraction)]
    if spec.kv_cache_bytes is not None:
        said += ["--kv-cache-memory-bytes", str(spec.kv_cache_bytes)]
    return said


def _together(spec: LaunchSpec) -> dict[str, str]:
    """How its processes find one another: over loopback, also where there is but one of them; over the pods' network where they are on
    several nodes, each by its own address."""
    if spec.nodes > 1:
        return {"VLLM_HOST_IP": spec.host}
    loopback = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    return {"VLLM_HOST_IP": "127.0.0.1", **dict.fromkeys(loopback, "lo")}


def _precision(spec: LaunchSpec) -> list[str]:
    said: list[str] = []
    if spec.quantization:
        said += ["--quantization", spec.quantization]
    if spec.kv_dtype:
        said += ["--kv-cache-dtype", spec.kv_dtype]
    if spec.max_batched_tokens:
        said += ["--max-num-batched-tokens", str(spec.max_batched_tokens)]
    return said


def _parsers(spec: LaunchSpec) -> list[str]:
    said: list[str] = []
    if spec.tool_parser:
        said += ["--enable-auto-tool-choice", "--tool-call-parser", spec.tool_parser]
    if spec.reasoning_parser:
        said += ["--reasoning-parser", spec.reasoning_parser]
    return said


def _adapters(spec: LaunchSpec) -> list[str]:
    if not spec.adapters:
        return []
    largest = max(adapter.rank for adapter in spec.adapters)
    rank = next((rank for rank in _RANKS if rank >= largest), largest)
    modules = [
        json.dumps(
            {"name": adapter.name, "path": str(adapter_folder(spec, number)), "base_model_name": spec.model_alias}
        )
        for number, adapter in enumerate(spec.adapters)
    ]
    count = str(len(spec.adapters))
    return [
        "--enable-lora",
        *("--max-lora-rank", str(rank)),
        *("--max-loras", count),
        *("--max-cpu-loras", count),
        *("--lora-modules", *modules),
    ]


def _pooling(spec: LaunchSpec) -> list[str]:
    if spec.pooling is None:
        return []
    if spec.pooling == "rank":
        return ["--runner", "pooling"]
    return ["--runner", "pooling", "--pooler-config", json.dumps({"pooling_type": spec.pooling.upper()})]
