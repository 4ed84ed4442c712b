"""Ollama: `ollama serve` with one model made of one GGUF file, behind our door, which keeps its control API shut."""

from __future__ import annotations

from typing import ClassVar, Final

from berth_runtime.config import OLLAMA, Setting
from berth_runtime.engines.engine import MODEL_UNREADABLE, OUT_OF_MEMORY, Capabilities
from berth_runtime.engines.gated import GATE_RULES, GatedEngine
from berth_runtime.engines.options import require
from berth_runtime.engines.prometheus import samples, whole
from berth_runtime.failure import Failure
from berth_runtime.lines import Rule
from berth_runtime.prepare import work_folder
from berth_runtime.servers.gate import INNER_PORT
from berth_runtime.spec import EngineMetrics, LaunchSpec, ModelFile

_RULES: Final = (
    *GATE_RULES,
    Rule(r"model not created", "Ollama cannot make a model of this file", MODEL_UNREADABLE),
    Rule(r".*(?:model requires more system memory|cudaMalloc failed: out of memory).*", "out of memory", OUT_OF_MEMORY),
)


class Ollama(GatedEngine):
    name: ClassVar[str] = "ollama"
    program: ClassVar[str] = "ollama"
    setting: ClassVar[Setting] = OLLAMA
    server: ClassVar[str] = "ollama.py"
    health_path: ClassVar[str] = "/api/version"
    metrics_path: ClassVar[str | None] = "/metrics"  # the door's: Ollama has none
    rules: ClassVar[tuple[Rule, ...]] = _RULES
    by_socket: ClassVar[bool] = False
    inner_ports: ClassVar[bool] = True

    def capabilities(self) -> Capabilities:
        return Capabilities(
            formats=("gguf",),
            endpoints=("chat/completions", "completions", "embeddings"),
            stream_usage=True,
            running_usage=False,
            stops_on_disconnect=True,
            json_schema=True,
            tools=True,
            logprobs=False,
            embeddings=True,
            refuses_overlong=False,
            ignores_eos=False,
            metrics=("running", "queued"),
        )

    def version(self) -> str:
        return f"Ollama at {self.found()}"

    def command(self, spec: LaunchSpec) -> list[str]:
        require(spec, self.name, "pooling", "kv_dtype", "tool_parser")
        return self.gated(spec, [self.found(), "serve"])

    def door(self, spec: LaunchSpec) -> dict[str, object]:
        weights = _weights(spec)
        model = {
            "name": spec.model_alias,
            "file": weights.path,
            "sha256": weights.sha256,
            "context": spec.context_length,
        }
        return super().door(spec) | {"inner_port": 0, "slots": spec.slots, "model": model}

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        own = {
            "OLLAMA_HOST": f"127.0.0.1:{INNER_PORT}",
            "OLLAMA_MODELS": str(work_folder(spec) / "models"),
            "OLLAMA_KEEP_ALIVE": "-1",  # it is Berth who decides when a model leaves the memory
            "OLLAMA_NUM_PARALLEL": str(spec.slots),
            "OLLAMA_CONTEXT_LENGTH": str(spec.context_length),
            "OLLAMA_MAX_LOADED_MODELS": "1",
            "OLLAMA_MAX_QUEUE": "512",
            "OLLAMA_NOPRUNE": "1",
            "OLLAMA_NOHISTORY": "1",
            "OLLAMA_NO_CLOUD": "1",  # no model of elsewhere, and no account
            "OLLAMA_DEBUG": "0",  # above, it prints prompts
            "OLLAMA_MULTIUSER_CACHE": "0",
            "DO_NOT_TRACK": "1",
        }
        if spec.kv_dtype:
            own |= {"OLLAMA_KV_CACHE_TYPE": spec.kv_dtype, "OLLAMA_FLASH_ATTENTION": "1"}
        return self.base_environment(spec) | own

    def lists(self, spec: LaunchSpec, answer: bytes) -> bool:
        """It calls a model without a tag `latest`."""
        return super().lists(spec, answer.replace(f"{spec.model_alias}:latest".encode(), spec.model_alias.encode()))

    def metrics(self, text: str) -> EngineMetrics:
        found = samples(text)
        return EngineMetrics(
            running=whole(found, "berth_door_requests_running"), queued=whole(found, "berth_door_requests_waiting")
        )


def _weights(spec: LaunchSpec) -> ModelFile:
    weights = [file for file in spec.files if file.role == "weights"]
    if len(weights) != 1:
        raise Failure("unsupported_option", "Ollama takes a model as one GGUF file. Merge its parts and upload that.")
    return weights[0]
