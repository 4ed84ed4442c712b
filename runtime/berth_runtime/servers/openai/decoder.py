"""What a library that generates tokens has to offer to be served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Sampling:
    """How one sequence is generated. Values are checked by whoever reads the request."""

    max_tokens: int  # at least 1; the prompt and this fit into the context
    temperature: float = 1.0  # 0: the likeliest token
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    seed: int | None = None
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    logprobs: int | None = None  # how many alternatives are told beside each token; None: not even its own
    guidance: tuple[str, str] | None = None  # kind ("json_schema", …) and grammar


@dataclass(frozen=True)
class Drawn:
    """One token. `end`: it is one that ends the answer, and is no part of it. `top`: ids and natural logarithms, likeliest first."""

    token: int
    end: bool
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Refusal(Exception):
    """The request is at fault. `message` names fields and limits, never a value of the request."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value", **facts: int) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.facts = facts


class SequenceFailed(Exception):
    """This sequence cannot go on; others can."""


class Generation(Protocol):
    """One sequence that is being generated."""

    def step(self) -> Drawn | None:
        """Computes once: the next token, or None while a part of the prompt is still to be read. Raises SequenceFailed."""

    def close(self) -> None:
        """Frees what it holds, at any time."""


class TextStream(Protocol):
    """Tokens to text. A character that takes several tokens comes with its last."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str:
        """What was held back."""


class Decoder(Protocol):
    """A loaded model. All but `text` and the attributes is called from one thread."""

    context: int  # tokens of one sequence
    vocabulary: int  # token ids are below this
    guides: bool  # `Sampling.guidance` works

    def encode(self, text: str, *, template: bool) -> list[int]:
        """Token ids. `template`: the text came from the chat template, which has written the special tokens itself."""

    def render(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        """The chat template's text. Raises Refusal if it does not take these messages."""

    def text(self) -> TextStream: ...

    def show(self, token: int) -> str:
        """One token's own text, for log probabilities."""

    def start(self, prompt: Sequence[int], sampling: Sampling) -> Generation:
        """Raises Refusal if the library refuses."""
