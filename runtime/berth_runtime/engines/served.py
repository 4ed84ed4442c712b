"""Engines that are Python libraries behind our own OpenAI server (`servers/openai`)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from berth_runtime.engines.engine import LISTENING, MODEL_UNREADABLE, OUT_OF_MEMORY, Call, Capabilities, Engine
from berth_runtime.engines.options import require
from berth_runtime.engines.prometheus import fraction, samples, whole
from berth_runtime.failure import Failure
from berth_runtime.lines import Rule
from berth_runtime.prepare import model_folder
from berth_runtime.spec import EngineMetrics, LaunchSpec

_RULES: Final = (
    Rule(
        r"listening on http://(?:[\d.]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d+)",
        "listening on port {port}",
        LISTENING,
    ),
    Rule(r"server not started: MemoryError", "out of memory", OUT_OF_MEMORY),
    Rule(r"server not started: \w+", "the model cannot be loaded by this engine", MODEL_UNREADABLE),
    Rule(r"engine failed", "the library failed while it computed"),
)


class ServedLibrary(Engine):
    """Subclasses name the package, the server's file and what they can do."""

    package: ClassVar[str]  # as it is imported
    distribution: ClassVar[str]
    server: ClassVar[str]
    formats: ClassVar[tuple[str, ...]]
    json_schema: ClassVar[bool]
    metrics_path: ClassVar[str | None] = "/metrics"
    settings_path: ClassVar[str | None] = "/settings"
    rules: ClassVar[tuple[Rule, ...]] = _RULES

    def capabilities(self) -> Capabilities:
        return Capabilities(
            formats=self.formats,
            endpoints=("chat/completions", "completions"),
            stream_usage=True,
            running_usage=True,
            stops_on_disconnect=True,
            json_schema=self.json_schema,
            metrics=("running", "queued", "prompt_tokens", "completion_tokens", "ttft_seconds", "ttft_count", "steps"),
        )

    def version(self) -> str:
        self.require_package()
        return f"{self.distribution} {importlib.metadata.version(self.distribution)}"

    def command(self, spec: LaunchSpec) -> list[str]:
        self.require_package()
        require(spec, self.name)
        server = Path(__file__).parent.parent / "servers" / self.server
        return [
            *(self.python(), "-I", "-B", str(server)),
            *("--model", str(model_folder(spec))),
            *("--host", spec.host),
            *("--port", str(spec.port)),
            *("--alias", spec.model_alias),
            *("--slots", str(spec.slots)),
            *("--context", str(spec.context_length)),
            *("--threads", str(spec.threads)),
            *("--secret-file", spec.secret_file),
        ]

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent"}

    def first_token(self, spec: LaunchSpec, model: str | None = None) -> Call:
        body = {
            "model": model or spec.model_alias,
            "prompt": "1",
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
        }
        return Call("POST", "/v1/completions", msgspec.json.encode(body))

    def metrics(self, text: str) -> EngineMetrics:
        found = samples(text)
        return EngineMetrics(
            running=whole(found, "berth_engine_requests_running"),
            queued=whole(found, "berth_engine_requests_waiting"),
            prompt_tokens=whole(found, "berth_engine_prompt_tokens_total"),
            completion_tokens=whole(found, "berth_engine_generation_tokens_total"),
            ttft_seconds=fraction(found, "berth_engine_time_to_first_token_seconds_sum"),
            ttft_count=whole(found, "berth_engine_time_to_first_token_seconds_count"),
            steps=whole(found, "berth_engine_steps_total"),
        )

    def difference(self, spec: LaunchSpec, settings: bytes) -> str | None:
        try:
            real = msgspec.json.decode(settings, type=_Settings)
        except msgspec.DecodeError:
            return "The engine does not say which settings it runs with."
        if real.context < spec.context_length:
            return (
                f"The engine gives each request {real.context} tokens of context instead of {spec.context_length}. "
                "Deploy with a context length that the model was made for."
            )
        return None

    def python(self) -> str:
        """The Python that has the library."""
        return sys.executable

    def require_package(self) -> None:
        if importlib.util.find_spec(self.package) is None:
            raise Failure(
                "engine_missing",
                f"The Python package {self.distribution} is not installed. It is an optional part: see docs/engines.md.",
            )


class _Settings(msgspec.Struct):
    context: int
