"""What the agent needs to know of an engine. One class per engine; everything else is the same for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from berth_runtime.cage import Limits
from berth_runtime.lines import Rule
from berth_runtime.spec import EngineMetrics, LaunchSpec

# Events that a line rule may name; the supervisor acts on them.
LISTENING = "listening"  # its rule has a group `port`
OUT_OF_MEMORY = "out_of_memory"
MODEL_UNREADABLE = "model_unreadable"
TEMPLATE_FAILS = "chat_template_fails"
ENGINE_TOO_OLD = "engine_too_old"


class Capabilities(msgspec.Struct, frozen=True):
    """What an engine can do, for whoever plans or tests."""

    formats: tuple[str, ...]  # of the weights: "gguf" …
    endpoints: tuple[str, ...]  # below /v1
    stream_usage: bool  # sends usage at the end of a stream when asked
    running_usage: bool  # can send token counts while it streams
    stops_on_disconnect: bool = False  # also where the answer is not streamed; False: for streams alone
    json_schema: bool = False
    tools: bool = False
    logprobs: bool = True
    adapters: bool = False  # serves LoRA adapters beside their base
    tensor_parallel: bool = False
    cache_salt: bool = False  # a request can keep its prefix cache apart by a word of its own (`cache_salt`)
    embeddings: bool = False  # models that pool
    refuses_overlong: bool = True  # a prompt beyond the context, which others cut without a word
    ignores_eos: bool = True  # when asked, goes on after the end
    metrics: tuple[str, ...] = ()  # which of EngineMetrics it offers


class Call(msgspec.Struct, frozen=True):
    """A request to the engine's own API."""

    method: str
    path: str
    body: bytes | None = None


class Engine(ABC):
    """All methods are pure but `version`, which may ask the engine's program."""

    name: ClassVar[str]
    health_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = None
    settings_path: ClassVar[str | None] = None  # where the effective settings can be read back
    rules: ClassVar[tuple[Rule, ...]]  # which lines of its output may be kept
    inner_ports: ClassVar[bool] = (
        False  # its processes speak with one another over loopback, behind the one declared port
    )

    spans_nodes: ClassVar[bool] = False  # `command` knows `nodes`, `node_rank` and `leader`

    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    @abstractmethod
    def version(self) -> str:
        """Program and version, for people and for comparing replicas."""

    @abstractmethod
    def command(self, spec: LaunchSpec) -> list[str]:
        """The argument list, the program's absolute path first. Never a secret. Raises Failure if there is no program."""

    @abstractmethod
    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """The whole environment of the engine; nothing is inherited."""

    def files(self, spec: LaunchSpec) -> dict[str, bytes]:
        """Files that it wants in its work folder before it starts, by name."""
        return {}

    def prepare(self, spec: LaunchSpec) -> None:  # noqa: B027 - most have nothing to make
        """Makes, in the work folder, what the engine reads in a form of its own. Raises Failure."""

    def limits(self, spec: LaunchSpec) -> Limits:
        return Limits(data_bytes=spec.memory_limit)

    @abstractmethod
    def first_token(self, spec: LaunchSpec, model: str | None = None) -> Call:
        """A request that generates exactly one token and holds nothing of anybody's; `model`: an adapter's name."""

    def first_chat(self, spec: LaunchSpec) -> Call:
        """A chat of one short turn and one token, which renders the model's template."""
        body = {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1, "temperature": 0}
        return Call("POST", "/v1/chat/completions", msgspec.json.encode(body | self.address(spec, spec.model_alias)))

    def tokens_in(self, answer: bytes) -> int:
        """How many tokens the answer to `first_token` says were generated; 0 if it is not such an answer."""
        try:
            usage = msgspec.json.decode(answer, type=_Answer).usage
        except msgspec.DecodeError:
            return 0
        return usage.prompt_tokens if usage.completion_tokens is None else usage.completion_tokens

    def address(self, spec: LaunchSpec, name: str) -> dict[str, Any]:
        """What a request's body says to reach the model or an adapter of that name."""
        return {"model": name}

    def metrics(self, text: str) -> EngineMetrics:
        """The engine's metrics under our names."""
        return EngineMetrics()

    def lists(self, spec: LaunchSpec, answer: bytes) -> bool:
        """Whether the engine's answer to `GET /v1/models` names the model and every adapter, and nothing else."""
        try:
            listed = {model.id for model in msgspec.json.decode(answer, type=_Listing).data}
        except msgspec.DecodeError:
            return False
        return listed == {spec.model_alias, *(adapter.name for adapter in spec.adapters)}

    def difference(self, spec: LaunchSpec, settings: bytes) -> str | None:
        """What the engine really runs with, where that is not what the spec asks: a sentence, or None."""
        return None


class _Model(msgspec.Struct):
    id: str


class _Listing(msgspec.Struct):
    data: list[_Model]


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None  # what only reads has none
    prompt_tokens: int = 0


class _Answer(msgspec.Struct):
    usage: _Usage
