"""Writing answers, chunks and errors in OpenAI's shapes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from berth_runtime.servers.openai.asks import Ask
from berth_runtime.servers.openai.decoder import Drawn, Refusal

DONE = b"data: [DONE]\n\n"


def error(status: int, message: str, code: str, param: str | None = None, **facts: int) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code, **facts}})


def refusal(raised: Refusal) -> bytes:
    return error(400, raised.message, raised.code, raised.param, **raised.facts)


@dataclass
class Writer:
    """The answer to one request, piece by piece or whole."""

    ask: Ask
    id: str
    created: int  # Unix seconds
    model: str
    show: Callable[[int], str]
    produced: int = 0  # tokens drawn so far, the one that ends the answer included
    finish: str | None = None
    _text: list[str] = field(default_factory=list)
    _drawn: list[Drawn] = field(default_factory=list)
    _offset: int = 0  # characters of the tokens told so far

    def opening(self) -> bytes:
        """A chat stream's first event, which tells the role."""
        return self._event({"role": "assistant", "content": ""}) if self.ask.chat else b""

    def piece(self, text: str, drawn: list[Drawn]) -> bytes:
        """An event with text. `drawn`: the tokens whose probabilities belong to it."""
        return self._event({"content": text} if self.ask.chat else text, drawn)

    def ending(self) -> bytes:
        """The last events of a stream."""
        last = self._event({} if self.ask.chat else "", finish=self.finish)
        if self.ask.usage:
            last += self._sse({**self._envelope(chunk=True), "choices": [], "usage": self.usage()})
        return last + DONE

    def failure(self) -> bytes:
        """Ends a stream that cannot go on."""
        return b"data: " + error(500, "The engine failed.", "engine_failed") + b"\n\n"

    def collect(self, text: str, drawn: list[Drawn]) -> None:
        """Text of an answer that is given whole."""
        self._text.append(text)
        self._drawn += drawn

    def whole(self) -> bytes:
        text = "".join(self._text)
        body = {"message": {"role": "assistant", "content": text}} if self.ask.chat else {"text": text}
        choice = {"index": 0, **body, "logprobs": self._logprobs(self._drawn), "finish_reason": self.finish}
        return msgspec.json.encode({**self._envelope(chunk=False), "choices": [choice], "usage": self.usage()})

    def usage(self) -> dict[str, Any]:
        prompt = len(self.ask.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.produced,
            "total_tokens": prompt + self.produced,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    def _event(self, body: Any, drawn: list[Drawn] | None = None, finish: str | None = None) -> bytes:
        shown = {"delta": body} if self.ask.chat else {"text": body}
        choice = {"index": 0, **shown, "logprobs": self._logprobs(drawn or []), "finish_reason": finish}
        event = {**self._envelope(chunk=True), "choices": [choice]}
        if self.ask.running_usage:
            event["usage"] = self.usage()
        return self._sse(event)

    def _envelope(self, *, chunk: bool) -> dict[str, Any]:
        name = ("chat.completion.chunk" if chunk else "chat.completion") if self.ask.chat else "text_completion"
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}

    @staticmethod
    def _sse(event: dict[str, Any]) -> bytes:
        return b"data: " + msgspec.json.encode(event) + b"\n\n"

    def _logprobs(self, drawn: list[Drawn]) -> dict[str, Any] | None:
        if self.ask.sampling.logprobs is None or not drawn:
            return None
        if self.ask.chat:
            return {"content": [self._chat_logprob(token) for token in drawn]}
        shown = [self.show(token.token) for token in drawn]
        offsets = []
        for text in shown:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": shown,
            "token_logprobs": [token.logprob for token in drawn],
            "top_logprobs": [{self.show(id_): value for id_, value in token.top} for token in drawn],
            "text_offset": offsets,
        }

    def _chat_logprob(self, drawn: Drawn) -> dict[str, Any]:
        top = [self._named(id_, value) for id_, value in drawn.top]
        return {**self._named(drawn.token, drawn.logprob), "top_logprobs": top}

    def _named(self, token: int, logprob: float | None) -> dict[str, Any]:
        text = self.show(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
