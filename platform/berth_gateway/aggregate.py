"""Puts a stream together to the answer a client without `stream` gets. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from berth_gateway.chunks import EngineFault
from berth_gateway.meter import Counts

_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode

MAX_TEXT = 64 * 1024 * 1024  # characters of one answer; an engine that writes more is at fault


class Aggregate:
    """Collects the choices of one answer by their index."""

    __slots__ = ("_chat", "_choices", "_size")

    def __init__(self, *, chat: bool) -> None:
        self._chat = chat
        self._choices: dict[int, _Choice] = {}
        self._size = 0

    def add(self, choices: bytes) -> None:
        """One chunk's `choices`, as JSON. Raises EngineFault."""
        self._size += len(choices)
        if self._size > MAX_TEXT:
            raise EngineFault
        try:
            decoded = _decode(choices)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise EngineFault from None
        for item in decoded:
            try:
                index = _index(item)
                choice = self._choices.get(index)
                if choice is None:
                    choice = self._choices[index] = _Choice()
                choice.add(item, item.get("delta") if self._chat else item)
            except (TypeError, AttributeError, KeyError):
                raise EngineFault from None

    def answer(self, *, id_: str, object_: str, created: int, model: str, usage: Counts) -> bytes:
        choices = [self._choices[i].whole(i, chat=self._chat) for i in sorted(self._choices)]
        return msgspec.json.encode(
            {
                "id": id_,
                "object": object_,
                "created": created,
                "model": model,
                "choices": choices,
                "usage": usage_json(usage),
            }
        )


class _Choice:
    __slots__ = ("calls", "finish", "logprobs", "texts")

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}  # content, reasoning_content, refusal, text …
        self.calls: dict[int, dict[str, Any]] = {}
        self.logprobs: dict[str, list[Any]] | None = None
        self.finish: str | None = None

    def add(self, item: dict[str, Any], delta: dict[str, Any] | None) -> None:
        if item.get("finish_reason") is not None:
            self.finish = item["finish_reason"]
        logprobs = item.get("logprobs")
        if logprobs is not None:
            mine = self.logprobs = self.logprobs or {}
            for name, values in logprobs.items():
                if values is not None:
                    mine.setdefault(name, []).extend(values)
        for name, value in (delta or {}).items():
            if name in ("content", "reasoning_content", "reasoning", "refusal", "text"):
                if value is not None:
                    self.texts.setdefault(name, []).append(_text(value))
            elif name == "tool_calls" and value is not None:
                for call in value:
                    self._add_call(call)

    def _add_call(self, piece: dict[str, Any]) -> None:
        """Pieces belong together by their index; the id comes with the first only."""
        index = _index(piece)
        call = self.calls.setdefault(index, {"id": None, "type": "function", "name": "", "arguments": []})
        call["id"] = call["id"] or _text(piece.get("id"))
        function = piece.get("function") or {}
        call["name"] += _text(function.get("name"))
        call["arguments"].append(_text(function.get("arguments")))

    def whole(self, index: int, *, chat: bool) -> dict[str, Any]:
        joined = {name: "".join(pieces) for name, pieces in self.texts.items()}
        if not chat:
            return {
                "index": index,
                "text": joined.get("text", ""),
                "logprobs": self.logprobs,
                "finish_reason": self.finish,
            }
        message: dict[str, Any] = {"role": "assistant", "content": joined.pop("content", None)}
        message["refusal"] = joined.pop("refusal", None)
        message.update(joined)
        if self.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [
                {
                    "id": call["id"] or f"call_{at}",
                    "type": "function",
                    "function": {"name": call["name"], "arguments": "".join(call["arguments"])},
                }
                for at, call in sorted(self.calls.items())
            ]
        elif message["content"] is None and not joined:
            message["content"] = ""
        return {"index": index, "message": message, "logprobs": self.logprobs, "finish_reason": self.finish}


def _index(item: dict[str, Any]) -> int:
    """Raises TypeError: what is put in order must be a number, and chunks of a learned form were not decoded before."""
    index = item.get("index", 0)
    if type(index) is not int:
        raise TypeError
    return index


def _text(value: Any) -> str:
    """Raises TypeError."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError
    return value


def usage_json(usage: Counts) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
