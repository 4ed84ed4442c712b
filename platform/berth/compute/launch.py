"""What a runtime is told (LaunchSpec) and what it tells (ReplicaStatus), as JSON files with a format number.

The runtime reads and writes the same shapes from its own `spec` module, which the control plane never imports; a test
holds the two together.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

LAUNCH_FORMAT = 1
STATUS_FORMAT = 1


class ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file the engine needs, checked against size and digest before the engine starts."""

    path: str  # where the file lies on this machine; empty: it has to be fetched from `url`
    role: str  # "weights", "index", "config", "tokenizer", "template", "adapter", "data"
    size: int  # bytes
    sha256: str  # hex
    name: str = (
        ""  # what the engine should see it called, a bare name; empty for a single file, where it does not matter
    )
    url: str | None = None  # grant to read this one object, valid for minutes; never logged


class Adapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A LoRA adapter that the engine loads beside the model."""

    name: str  # what callers call it, as in "org/adapter"
    files: tuple[ModelFile, ...]
    rank: int  # the largest of its matrices
    target_modules: tuple[str, ...] = ()


class LaunchSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One replica, completely described. Secrets are named by file, never carried.

    `secret_file`, `state_dir`, `lifeline`, `host` and `port` belong to the provider: it puts its own values there,
    whatever the caller wrote (callers write the empty string).
    """

    format: int
    replica: str  # deterministic, so that starting twice is harmless
    org_id: str
    deployment_id: str
    revision: int
    engine: str  # "llamacpp", "vllm", "tensorrt_llm", "onnxruntime", "ollama", "reference"
    files: tuple[ModelFile, ...]
    model_alias: str  # what the engine calls the model in its answers
    context_length: int  # tokens for one request
    slots: int  # requests decoded side by side
    threads: int
    secret_file: str  # holds the bearer token that the engine demands
    state_dir: str  # status.json and log.jsonl are written here
    lifeline: str | None = None  # lock file of the supervisor: when it is free, the replica ends
    host: str = "127.0.0.1"
    port: int = 0  # 0: the system chooses
    memory_limit: int | None = None  # bytes of address space growth allowed to the engine; None: no limit
    # How tokens become one vector: "mean", "cls", "last"; "rank": a relevance; None: it writes text.
    pooling: str | None = None
    chat: bool = False  # it has a chat template, which has to render before the replica serves anybody
    start_deadline_seconds: int = 600
    drain_seconds: int = 30
    # How the model lies on its devices. An engine that cannot do what is asked refuses it (`unsupported_option`).
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    quantization: str | None = None  # in the engine's words ("fp8", "awq_marlin"); None: what the files say
    kv_dtype: str | None = None  # "fp8", "q8_0" …; None: as the weights
    memory_fraction: float | None = None  # of each GPU's memory; None: the engine's own
    kv_cache_bytes: int | None = None  # for engines that are told it (vLLM on a CPU); None: the engine's own
    max_batched_tokens: int | None = None  # of one step; None: the engine's own
    tool_parser: str | None = None  # how the model writes tool calls, in the engine's words; None: no tools
    reasoning_parser: str | None = None
    prefix_cache: bool = True  # a cache in the engine's own memory, which serves one organisation
    # Fetched files lie in a folder that agents share, by digest; the least recently used go when it is full.
    cache_dir: str | None = None  # None: in the replica's own folder
    cache_bytes: int | None = None  # None: all but a tenth of the disk
    restarts: int = 0  # how often the agent starts an engine again that ended by itself after it was ready
    liveness_seconds: int = 120  # without an answer, or at work without progress, until it counts as hung; 0: never
    model_format: str = "gguf"  # "gguf", "safetensors", "onnx": one file or a folder of files that belong together
    adapters: tuple[Adapter, ...] = ()
    tier: str = ""  # key of the offer it was planned for; empty: the provider has only one
    gpus: int = 0  # devices of each node that are this replica's alone
    nodes: int = 1  # machines that run it together
    devices: tuple[str, ...] = ()  # ids of the GPUs that it may see, where Berth chooses them; empty: none were chosen
    scrub: bool = False  # another organisation had one of them before: overwrite their memory before the engine starts
    node_rank: int = 0  # which of `nodes` this is; 0 serves, the others work for it. A pod learns it from its cluster
    leader: str = ""  # where rank 0 is found


class Phase(StrEnum):
    """Where a replica is on its way. Each of the first five is timed; the last two are ends."""

    FETCHING = "fetching"
    VERIFYING = "verifying"
    LOADING = "loading"
    WARMING = "warming"  # the first real token is being generated
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        """True when nothing of the replica runs any more and nothing will by itself."""
        return self in (Phase.STOPPED, Phase.FAILED)


class PhaseTiming(msgspec.Struct, frozen=True):
    phase: Phase
    started_at: float  # Unix seconds
    ended_at: float | None = None
    done: int | None = None  # bytes so far, where known
    total: int | None = None  # bytes


class EngineMetrics(msgspec.Struct, frozen=True):
    """The same names for every engine. None: this engine does not say."""

    running: int | None = None
    queued: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    kv_usage: float | None = None  # part of the KV cache that is in use, 0 to 1
    preemptions: int | None = None  # requests that lost their place for want of KV cache
    ttft_seconds: float | None = None  # sum over all requests so far, seen by the engine
    ttft_count: int | None = None  # of how many requests
    steps: int | None = None  # rises while the engine computes, by whatever it counts
    memory: int | None = None  # bytes that the engine has in main memory, weights that it has mapped included


class ReplicaStatus(msgspec.Struct, frozen=True):
    """What a replica last said of itself; `pid` with `pid_created_at` names the process even if the pid is reused."""

    format: int
    replica: str
    pid: int
    pid_created_at: float
    phase: Phase
    phases: tuple[PhaseTiming, ...]
    updated_at: float  # Unix seconds; a living replica writes at least every 2 s
    host: str
    port: int | None = None  # set once the engine listens
    engine_version: str | None = None
    metrics: EngineMetrics | None = None
    reason: str | None = None  # stable code, when failed: "checksum_mismatch", "engine_exited", "start_timeout" …
    message: str | None = None  # a sentence for people, never text of a request
