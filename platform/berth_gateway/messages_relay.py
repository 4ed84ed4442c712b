"""Chunks of a chat, said as Anthropic's messages say them: blocks that open, grow and close, with an event line each. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from berth_gateway.account import Facts
from berth_gateway.aggregate import MAX_TEXT
from berth_gateway.chunks import ChunkReader, EngineFault
from berth_gateway.dialect import anthropic_body
from berth_gateway.errors import Refusal
from berth_gateway.meter import Counts
from berth_gateway.relay import EVENT_STREAM, Relayed
from berth_gateway.sse import EventSplitter, EventTooLarge

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode
_encode = msgspec.json.Encoder().encode


class _Block:
    """One block of the answer: thinking, text or tool_use. `key`: what further pieces of it are known by."""

    __slots__ = ("key", "pieces", "start")

    def __init__(self, key: object, start: dict[str, Any]) -> None:
        self.key = key
        self.start = start
        self.pieces: list[str] = []

    def whole(self) -> dict[str, Any]:
        text = "".join(self.pieces)
        kind = self.start["type"]
        if kind == "thinking":
            return {"type": "thinking", "thinking": text, "signature": ""}
        if kind == "text":
            return {"type": "text", "text": text}
        try:
            given = msgspec.json.decode(text) if text else {}
        except (msgspec.DecodeError, RecursionError):
            given = {}
        return {**self.start, "input": given if isinstance(given, dict) else {}}


class MessagesRelay:
    """One answer, streamed or put together."""

    media = EVENT_STREAM

    def __init__(self, facts: Facts) -> None:
        self.reader = ChunkReader()
        self.message_id = f"{facts.endpoint.id_prefix}{facts.event_id.replace('-', '')}"
        self._facts = facts
        self._stream = facts.prepared.stream
        self._splitter = EventSplitter()
        self._blocks: list[_Block] = []
        self._open = False
        self._started = False
        self._reason: str | None = None
        self._size = 0

    # In

    def feed(self, data: bytes) -> Relayed:
        try:
            return self._events(self._splitter.feed(data))
        except EventTooLarge:
            return Relayed(fault=True)

    def feed_framed(self, data: bytes) -> bytes | None:
        if not self._splitter.between_events:
            return None
        choices = self.reader.read_framed(data)
        return None if choices is None else b"".join(self._choices(choices))

    def finish(self) -> Relayed:
        return self._events(self._splitter.finish())

    def _events(self, events: list[bytes]) -> Relayed:
        relayed = Relayed()
        try:
            for data in events:
                if data == b"[DONE]":
                    relayed.done = True
                    relayed.fault = not self.reader.complete
                    break
                choices = self.reader.read(data)
                if choices is not None:
                    relayed.out += self._choices(choices)
        except EngineFault:
            relayed.fault = True
        return relayed

    def _choices(self, choices: bytes) -> list[bytes]:
        self._size += len(choices)
        if not self._stream and self._size > MAX_TEXT:
            raise EngineFault
        out: list[bytes] = []
        try:
            for choice in _decode(choices):
                reason = choice.get("finish_reason")
                if reason is not None:
                    self._reason = _REASONS.get(reason, "end_turn")
                self._delta(choice.get("delta") or {}, out)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, AttributeError, KeyError):
            raise EngineFault from None
        return out

    def _delta(self, delta: dict[str, Any], out: list[bytes]) -> None:
        for name in ("reasoning_content", "reasoning"):
            if delta.get(name):
                self._grow("thinking", {"type": "thinking", "thinking": "", "signature": ""}, delta[name], out)
                break
        said = delta.get("content") or delta.get("refusal")
        if said:
            self._grow("text", {"type": "text", "text": ""}, said, out)
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            start: dict[str, Any] = {
                "type": "tool_use",
                "id": call.get("id") or f"toolu_{self.message_id[4:]}_{call.get('index', 0)}",
                "name": function.get("name") or "",
                "input": {},
            }
            self._grow(("call", call.get("index", 0)), start, function.get("arguments") or "", out)

    # Out

    def _grow(self, key: object, start: dict[str, Any], piece: Any, out: list[bytes]) -> None:
        if not isinstance(piece, str):
            raise EngineFault
        if not self._blocks or self._blocks[-1].key != key:
            self._close(out)
            self._blocks.append(_Block(key, start))
            if self._stream:
                out += self._start()
                self._open = True
                out.append(self._event("content_block_start", index=len(self._blocks) - 1, content_block=start))
        if not self._stream:
            self._blocks[-1].pieces.append(piece)
        elif piece:
            kind = start["type"]
            delta = {"type": "input_json_delta", "partial_json": piece}
            if kind == "text":
                delta = {"type": "text_delta", "text": piece}
            elif kind == "thinking":
                delta = {"type": "thinking_delta", "thinking": piece}
            out.append(self._event("content_block_delta", index=len(self._blocks) - 1, delta=delta))

    def _start(self) -> list[bytes]:
        """The opening event, once. Prompt tokens are in it where the engine has counted them by now."""
        if self._started:
            return []
        self._started = True
        counts = self.reader.running() or Counts()
        message = self._message([], None, Counts(prompt=counts.prompt, cached=counts.cached))
        return [self._event("message_start", message=message)]

    def _close(self, out: list[bytes]) -> None:
        if self._open:
            self._open = False
            out.append(self._event("content_block_stop", index=len(self._blocks) - 1))

    def last_events(self, usage: Counts) -> bytes:
        out = self._start()
        self._close(out)
        delta = {"stop_reason": self._reason or "end_turn", "stop_sequence": None}
        out.append(self._event("message_delta", delta=delta, usage=usage_json(usage)))
        out.append(self._event("message_stop"))
        return b"".join(out)

    def answer(self, usage: Counts) -> bytes | None:
        if self._stream:
            return None
        content = [block.whole() for block in self._blocks]
        return _encode(self._message(content, self._reason or "end_turn", usage))

    def error_event(self, refusal: Refusal) -> bytes:
        return b"event: error\ndata: %b\n\n" % anthropic_body(refusal, self._facts.request_id)

    def _message(self, content: list[dict[str, Any]], reason: str | None, usage: Counts) -> dict[str, Any]:
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self._facts.route.name,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage_json(usage),
        }

    @staticmethod
    def _event(name: str, **members: Any) -> bytes:
        """An event without its name on a line of its own is dropped by Anthropic's clients without a word."""
        return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **members}))


def usage_json(usage: Counts) -> dict[str, int]:
    """Here the three input figures exclude each other."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }
