"""llama.cpp: the llama-server on PATH where there is one (a GPU build, say), else the one inside xllamacpp."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from berth_runtime.cage import Limits
from berth_runtime.config import LLAMA_SERVER, read
from berth_runtime.engines.engine import Call, Capabilities, Engine
from berth_runtime.engines.llamacpp_lines import RULES
from berth_runtime.engines.options import require
from berth_runtime.engines.prometheus import samples, whole
from berth_runtime.failure import Failure
from berth_runtime.lines import Rule
from berth_runtime.prepare import adapter_folder, model_folder, name_of, work_folder
from berth_runtime.spec import Adapter, EngineMetrics, LaunchSpec

# Which device a replica may use is decided outside; the engine has to be told in the driver's own words.
_DEVICES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR")
_SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"

# Needed for privacy or isolation: a llama-server that does not know them is too old to be used.
_REQUIRED: Final = (
    "--metrics",
    "--no-slots",
    "--api-key-file",
    "--jinja",
    "--offline",
    "--cache-ram",
    "--threads-http",
)
# Set where the program knows them. The older ones that do not have none of what these turn off.
_OPTIONAL: Final = (
    ("--no-ui", ()),
    ("--no-cache-idle-slots", ()),
    ("--ctx-checkpoints", ("0",)),
    ("--fit", ("off",)),
    ("--no-context-shift", ()),
    ("--cors-origins", ("",)),
    ("--no-cors-credentials", ()),
    ("--log-colors", ("off",)),
)

_CONNECTIONS: Final = 256
_STACK_BYTES: Final = 8 << 20


class LlamaCpp(Engine):
    name: ClassVar[str] = "llamacpp"
    metrics_path: ClassVar[str | None] = "/metrics"
    settings_path: ClassVar[str | None] = "/props"
    rules: ClassVar[tuple[Rule, ...]] = RULES

    def capabilities(self) -> Capabilities:
        return Capabilities(
            formats=("gguf",),
            endpoints=("chat/completions", "completions", "responses", "messages", "embeddings", "rerank"),
            stream_usage=True,
            running_usage=True,
            json_schema=True,
            tools=True,
            adapters=True,
            embeddings=True,
            metrics=("running", "queued", "prompt_tokens", "completion_tokens", "steps"),
        )

    def version(self) -> str:
        program = _program()
        if program:
            said = re.search(r"version: ?([\w.() -]{1,60})", _asked(program, "--version"), re.ASCII)
            return f"llama-server {said[1].strip() if said else 'of unknown version'}"
        return f"llama.cpp (xllamacpp {importlib.metadata.version('xllamacpp')})"

    def command(self, spec: LaunchSpec) -> list[str]:
        program = _program()
        require(spec, self.name, "adapters", "pooling", "kv_dtype", "max_batched_tokens", "tool_parser")
        own = [
            *("--model", _weights(spec)),
            *("--host", spec.host),
            *("--port", str(spec.port)),
            *("--alias", spec.model_alias),
            *("--parallel", str(spec.slots)),
            # llama.cpp splits its context over the slots, rounding each part down to a multiple of 256.
            *("--ctx-size", str(-(-spec.context_length // 256) * 256 * spec.slots)),
            *("--threads", str(spec.threads)),
            *("--threads-batch", str(spec.threads)),
            # Each open connection holds a thread, also while it waits for a slot. These are kept, more come as needed.
            *("--threads-http", str(spec.slots * 4 + 16)),
            *("--api-key-file", spec.secret_file),
            *_pooled(spec),
            *_kv_cache(spec),
        ]
        if program is None:
            server = Path(__file__).parent.parent / "servers" / "llamacpp.py"
            return [sys.executable, "-I", "-B", str(server), *own, *(f"--lora={path}" for path in _adapters(spec))]
        return [program, *own, *_switches(program), *_scaled(program, _adapters(spec))]

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        devices = {name: os.environ[name] for name in _DEVICES if name in os.environ}
        return {"PATH": _SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": "/nonexistent", **devices}

    def prepare(self, spec: LaunchSpec) -> None:
        """Adapters as PEFT saves them become GGUF files."""
        for number, adapter in enumerate(spec.adapters):
            if _as_saved(adapter):
                from berth_runtime.engines.lora_gguf import write_gguf  # numpy: only who needs it waits for it

                write_gguf(adapter_folder(spec, number), Path(_weights(spec)), _made(spec, number))

    def limits(self, spec: LaunchSpec) -> Limits:
        """A connection's thread sets aside a stack of which it uses next to nothing; that must not end the engine."""
        if spec.memory_limit is None:
            return Limits()
        return Limits(data_bytes=spec.memory_limit + (_CONNECTIONS + spec.slots * 4 + spec.threads * 2) * _STACK_BYTES)

    def first_token(self, spec: LaunchSpec, model: str | None = None) -> Call:
        address = self.address(spec, model or spec.model_alias)
        if spec.pooling == "rank":
            return Call("POST", "/v1/rerank", msgspec.json.encode({"query": "1", "documents": ["1"]}))
        if spec.pooling is not None:
            return Call("POST", "/v1/embeddings", msgspec.json.encode({"input": "1"}))
        body = {"prompt": "1", "max_tokens": 1, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        return Call("POST", "/v1/completions", msgspec.json.encode(body | address))

    def address(self, spec: LaunchSpec, name: str) -> dict[str, Any]:
        """It does not look at the model's name: an adapter is switched on by its number, for one request. The base is asked for with
        one at no weight: where none is named, the engine goes on from a prefix that it has read with one."""
        number = next((number for number, adapter in enumerate(spec.adapters) if adapter.name == name), None)
        if number is None:
            return {"model": name, "lora": [{"id": 0, "scale": 0.0}]} if spec.adapters else {"model": name}
        return {"model": name, "lora": [{"id": number, "scale": 1.0}]}

    def lists(self, spec: LaunchSpec, answer: bytes) -> bool:
        return super().lists(msgspec.structs.replace(spec, adapters=()), answer)

    def metrics(self, text: str) -> EngineMetrics:
        found = samples(text)
        prompt = whole(found, "llamacpp:prompt_tokens_total")
        return EngineMetrics(
            running=whole(found, "llamacpp:requests_processing"),
            queued=whole(found, "llamacpp:requests_deferred"),
            prompt_tokens=prompt,
            completion_tokens=whole(found, "llamacpp:tokens_predicted_total"),
            steps=whole(found, "llamacpp:n_decode_total"),
        )

    def difference(self, spec: LaunchSpec, settings: bytes) -> str | None:
        try:
            real = msgspec.json.decode(settings, type=_Props)
        except msgspec.DecodeError:
            return "The engine does not say which settings it runs with."
        context = real.default_generation_settings.n_ctx
        if context < spec.context_length:
            return (
                f"The engine gives each request {context} tokens of context instead of {spec.context_length}. "
                "Deploy with a context length that the model was trained for."
            )
        if real.total_slots != spec.slots:
            return f"The engine runs {real.total_slots} slots instead of {spec.slots}."
        if real.endpoint_slots or real.endpoint_props or real.ui or real.webui:
            return "The engine shows control pages that were to be off."
        return None


class _Generation(msgspec.Struct):
    n_ctx: int


class _Props(msgspec.Struct):
    default_generation_settings: _Generation
    total_slots: int
    endpoint_slots: bool = False
    endpoint_props: bool = False
    ui: bool = False
    webui: bool = False


def _pooled(spec: LaunchSpec) -> list[str]:
    """Switches of a model that gives vectors or relevances. It reads a text in one batch, or refuses it."""
    if spec.pooling is None:
        return []
    kind = "--reranking" if spec.pooling == "rank" else "--embeddings"
    batch = str(-(-spec.context_length // 256) * 256)
    return [kind, "--pooling", spec.pooling, "--batch-size", batch, "--ubatch-size", batch]


def _kv_cache(spec: LaunchSpec) -> list[str]:
    return ["--cache-type-k", spec.kv_dtype, "--cache-type-v", spec.kv_dtype] if spec.kv_dtype else []


def _adapters(spec: LaunchSpec) -> list[str]:
    """The adapters' files."""
    paths: list[str] = []
    for number, adapter in enumerate(spec.adapters):
        if _as_saved(adapter):
            paths.append(str(_made(spec, number)))
            continue
        weights = [file for file in adapter.files if file.role in ("weights", "adapter")]
        if len(weights) != 1:
            raise Failure("adapter_unreadable", "llama.cpp takes an adapter as one GGUF file. Convert it to GGUF.")
        paths.append(str(adapter_folder(spec, number) / name_of(weights[0])))
    return paths


def _as_saved(adapter: Adapter) -> bool:
    """By PEFT: a configuration and safetensors, of which `prepare` makes a GGUF file."""
    return any(file.name.endswith(".safetensors") for file in adapter.files)


def _made(spec: LaunchSpec, number: int) -> Path:
    return work_folder(spec) / f"adapter-{number}.gguf"


def _scaled(program: str, paths: list[str]) -> list[str]:
    """Loaded with no weight, so that a request that asks for none gets none. The form of that has changed once."""
    if not paths:
        return []
    if any(letter in path for path in paths for letter in ":,"):
        raise Failure("adapter_unreadable", "llama.cpp takes no adapter from a folder whose path has ':' or ','.")
    together = "FNAME:SCALE" in _asked(program, "--help")
    return [
        word
        for path in paths
        for word in (["--lora-scaled", f"{path}:0"] if together else ["--lora-scaled", path, "0"])
    ]


def _weights(spec: LaunchSpec) -> str:
    """The first shard: llama.cpp finds the others by their names, so these must be the ones it expects."""
    weights = [file for file in spec.files if file.role == "weights"]
    if len(weights) > 1 and all(file.name for file in weights):
        paths = sorted(str(model_folder(spec) / file.name) for file in weights)
    else:
        paths = sorted(file.path for file in weights)
    expected = [f"-{number:05}-of-{len(paths):05}.gguf" for number in range(1, len(paths) + 1)]
    if len(paths) > 1 and not all(path.endswith(end) for path, end in zip(paths, expected, strict=True)):
        raise Failure(
            "shards_unnamed",
            "The model is in several GGUF files whose names do not say their order. Merge them into one and upload that.",
        )
    return paths[0]


def _program() -> str | None:
    """The llama-server to run, or None for the bundled one."""
    wish = read(LLAMA_SERVER)
    if wish == "bundled":
        return None
    if not wish:
        return shutil.which("llama-server")
    if not (Path(wish).is_absolute() and os.access(wish, os.X_OK)):
        raise Failure(
            "engine_missing", f"{LLAMA_SERVER.name} names {wish}, which is not a program at an absolute path."
        )
    return wish


def _switches(program: str) -> list[str]:
    known = _asked(program, "--help").replace(",", " ").split()
    missing = [flag for flag in _REQUIRED if flag not in known]
    if missing:
        raise Failure(
            "engine_too_old",
            f"{program} does not know {', '.join(missing)}, which Berth needs to keep prompts private. Install a newer one.",
        )
    switches = ["--metrics", "--no-slots", "--jinja", "--offline", "--cache-ram", "0", "--verbosity", "3"]
    for flag, values in _OPTIONAL:
        if flag in known:
            switches += [flag, *values]
    return switches


@cache
def _asked(program: str, question: str) -> str:
    """What the program prints about itself."""
    try:
        done = subprocess.run(
            [program, question],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": _SYSTEM_PATH, "LANG": "C.UTF-8"},
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise Failure("engine_missing", f"{program} cannot be run.") from None
    return done.stdout.decode("utf-8", "replace")
