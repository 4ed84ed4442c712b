"""An engine's responses events: checked, numbered, and with what engines leave out. Nothing of the engine's own names passes. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from berth_gateway.account import Facts
from berth_gateway.chunks import EngineFault, Timings
from berth_gateway.errors import Refusal
from berth_gateway.meter import Counts
from berth_gateway.relay import EVENT_STREAM, Relayed
from berth_gateway.responses_order import BEGIN, Event, ResponseOrder, item_key
from berth_gateway.sse import EventSplitter, EventTooLarge

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_KNOWN = (
    "response.output_item.",
    "response.content_part.",
    "response.output_text.",
    "response.refusal.",
    "response.function_call_arguments.",
    "response.reasoning_text.",
    "response.reasoning_part.",
    "response.reasoning_summary_part.",
    "response.reasoning_summary_text.",
)
_MEMBERS = frozenset(
    {
        "type", "item", "item_id", "output_index", "content_index", "summary_index", "part", "delta", "text", "refusal", "name",
        "arguments", "annotation", "annotation_index", "logprobs",
    }
)  # fmt: skip
_ITEM_TYPES = frozenset({"message", "function_call", "reasoning"})
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class _CachedDetails(Struct):
    cached_tokens: int | None = None


class _ReasoningDetails(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _CachedDetails | None = None
    output_tokens_details: _ReasoningDetails | None = None

    def counts(self) -> Counts | None:
        if self.input_tokens is None or self.output_tokens is None:
            return None
        cached, reasoning = self.input_tokens_details, self.output_tokens_details
        return Counts(
            self.input_tokens,
            (cached.cached_tokens or 0) if cached else 0,
            self.output_tokens,
            (reasoning.reasoning_tokens or 0) if reasoning else 0,
        )


class ResponseReader:
    """What has come: pieces of text, and figures."""

    __slots__ = ("complete", "final", "latest", "pieces")
    has_learned = False

    def __init__(self) -> None:
        self.pieces = 0
        self.final: Counts | None = None
        self.complete = False
        self.latest: Counts | None = None

    def running(self) -> Counts | None:
        return self.latest


class ResponsesRelay:
    """One answer, streamed or taken from its last event."""

    media = EVENT_STREAM

    def __init__(self, facts: Facts) -> None:
        self.reader = ResponseReader()
        self._facts = facts
        self._splitter = EventSplitter()
        self._number = 0
        self._parts: dict[str, int] = {}  # the last part of each item
        self._begun = False
        self._order = ResponseOrder()
        self._output: list[Any] = []
        self._untold: list[Event] = []  # what of the output has to be told at the end
        self._status = "completed"

    # In

    def feed(self, data: bytes) -> Relayed:
        try:
            return self._events(self._splitter.feed(data))
        except EventTooLarge:
            return Relayed(fault=True)

    def feed_framed(self, data: bytes) -> bytes | None:
        return None

    def finish(self) -> Relayed:
        return self._events(self._splitter.finish())

    def _events(self, events: list[bytes]) -> Relayed:
        relayed = Relayed()
        try:
            for data in events:
                if data == b"[DONE]":
                    relayed.fault = not self.reader.complete
                    break
                out = self._read(data)
                if out and self._facts.prepared.stream:
                    relayed.out.append(out)
                if self.reader.complete:
                    relayed.done = True
                    relayed.fault = self._status == "failed"
                    break
        except (EngineFault, msgspec.MsgspecError, ValueError, RecursionError, TypeError, AttributeError, LookupError):
            relayed.fault = True  # members that are missing, or are something else
        return relayed

    def _read(self, data: bytes) -> bytes | None:
        event = _decode(data)
        kind = event.get("type")
        if not isinstance(kind, str) or kind == "error" or "error" in event:
            raise EngineFault
        timings = event.get("timings")
        if timings is not None:
            self.reader.latest = msgspec.convert(timings, Timings).counts()
        if kind in _ENDS:
            self._end(kind, event["response"])
            return None
        if kind in BEGIN:
            return self._written([])  # said again, it would make clients forget what they have
        if not kind.startswith(_KNOWN):
            return None
        kind = kind.replace("reasoning_part", "content_part")  # vLLM's name for it
        if kind.endswith(".delta") and event.get("delta"):
            self.reader.pieces += 1
        elif kind == "response.output_item.done" and event["item"].get("type") == "function_call":
            self.reader.pieces += not self.reader.pieces
        members = self._completed(kind, event)
        return self._written(self._order.put(kind, members))

    def _written(self, events: list[Event]) -> bytes:
        """Those events, behind the two that begin every response."""
        out = b"" if self._begun else b"".join(self._begin())
        return out + b"".join(self._event(kind, **members) for kind, members in events)

    def _begin(self) -> list[bytes]:
        self._begun = True
        return [self._event(kind, response=self._response("in_progress", [], None)) for kind in BEGIN]

    def _completed(self, kind: str, event: dict[str, Any]) -> dict[str, Any]:
        """The event's known members, and those that some engines leave out though clients count on them."""
        members = {name: value for name, value in event.items() if name in _MEMBERS and name != "type"}
        item = members.get("item")
        if item is not None and item.get("type") not in _ITEM_TYPES:
            raise EngineFault
        item_id = item_key(members)
        if kind.startswith(
            ("response.content_part.", "response.output_text.", "response.refusal.", "response.reasoning_text.")
        ):
            if kind == "response.content_part.added":
                self._parts[item_id] = self._parts.get(item_id, -1) + 1
            members.setdefault("content_index", max(0, self._parts.get(item_id, 0)))
        if kind.startswith("response.reasoning_summary"):
            members.setdefault("summary_index", 0)
        if kind in ("response.output_text.delta", "response.output_text.done"):
            members.setdefault("logprobs", [])
        part = members.get("part")
        if isinstance(part, dict) and part.get("type") == "output_text":
            members["part"] = {"annotations": [], "logprobs": [], **part}
        return members

    def _end(self, kind: str, response: dict[str, Any]) -> None:
        reader = self.reader
        usage = response.get("usage")
        reader.final = msgspec.convert(usage, _Usage).counts() if usage is not None else None
        reader.complete = True
        self._status = kind.removeprefix("response.")
        output = response.get("output") or []
        if any(item.get("type") not in _ITEM_TYPES for item in output):
            raise EngineFault
        produced = reader.final.completion if reader.final else 0
        if self._status == "completed" and produced >= self._facts.prepared.most_tokens:
            # llama.cpp calls an answer complete that was cut off.
            self._status = "incomplete"
            output = [*output[:-1], {**output[-1], "status": "incomplete"}] if output else output
        self._output = [{"id": item_key({"item": item}), **item} for item in output]
        self._untold = self._order.close(self._output)

    # Out

    def last_events(self, usage: Counts) -> bytes:
        rest = self._written(self._untold)
        return rest + self._event(
            f"response.{self._status}", response=self._response(self._status, self._output, usage)
        )

    def answer(self, usage: Counts) -> bytes | None:
        if self._facts.prepared.stream:
            return None
        return _encode(self._response(self._status, self._output, usage))

    def error_event(self, refusal: Refusal) -> bytes:
        """The documented flat form, and the object that makes the clients raise."""
        error = {"type": refusal.type, "code": refusal.code, "message": refusal.message, "param": refusal.param}
        return self._event("error", code=refusal.code, message=refusal.message, param=refusal.param, error=error)

    def _event(self, kind: str, **members: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        data = _encode({"type": kind, "sequence_number": number, **members})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _response(self, status: str, output: list[Any], usage: Counts | None) -> dict[str, Any]:
        facts = self._facts
        return {
            "id": f"{facts.endpoint.id_prefix}{facts.event_id.replace('-', '')}",
            "object": "response",
            "created_at": int(facts.accepted_at),
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "model": facts.route.name,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            **(facts.prepared.notes or {}),
            "usage": None if usage is None else usage_json(usage),
        }


def usage_json(usage: Counts) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
