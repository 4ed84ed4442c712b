"""An engine's stream, chunk by chunk: what of it reaches the client, and what it tells about tokens.

A chunk is taken apart by its bytes where its form has been learned from an earlier one (everything but `choices` and the
running figures is constant in a stream), and decoded as a whole otherwise. Either way only `choices` goes on; ids, names,
fingerprints, timings and usage of the engine stay here.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from berth_gateway.framing import known_size
from berth_gateway.logprobs import Rewriter, is_chats
from berth_gateway.meter import Counts

RUNNING = (b',"timings":{', b',"usage":{')
UNFINISHED = b'"finish_reason":null'
FINISHED = b'"finish_reason":"'
FAILED = frozenset(
    {"error", "abort"}
)  # finish reasons of an engine that gave up; clients would take what came for an answer
CHOICE_KEYS = frozenset({"index", "delta", "text", "logprobs", "finish_reason"})


class EngineFault(Exception):
    """The engine sent an error, or something that is not a chunk. Its text is never shown."""


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _CompletionDetails(Struct):
    reasoning_tokens: int | None = None


class Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None

    def counts(self) -> Counts | None:
        """None when a figure is missing; an explicit zero is a figure."""
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        cached, reasoning = self.prompt_tokens_details, self.completion_tokens_details
        return Counts(
            self.prompt_tokens,
            (cached.cached_tokens or 0) if cached else 0,
            self.completion_tokens,
            (reasoning.reasoning_tokens or 0) if reasoning else 0,
        )


class Timings(Struct):
    """llama.cpp's running figures."""

    cache_n: int = 0
    prompt_n: int = 0
    predicted_n: int = 0

    def counts(self) -> Counts:
        return Counts(self.cache_n + self.prompt_n, self.cache_n, self.predicted_n, 0)


class _Figures(Struct):
    timings: Timings | None = None
    usage: Usage | None = None


class _Chunk(_Figures):
    choices: list[dict[str, Any]] | None = None
    error: Any = None


class _RawChoices(Struct):
    choices: msgspec.Raw


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_figures = msgspec.json.Decoder(_Figures).decode
_decode_raw = msgspec.json.Decoder(_RawChoices).decode
_encode = msgspec.json.Encoder().encode


class ChunkReader:
    """Reads the events of one answer in order.

    `pieces`: chunks with content so far. `final`: the engine's closing usage. `complete` when every choice seen has its
    finish_reason.
    """

    __slots__ = (
        "_expected",
        "_finished",
        "_lessons",
        "_prefix",
        "_rewriters",
        "_running_counts",
        "_seen",
        "final",
        "fixed",
        "framed",
        "last_running",
        "pieces",
    )

    def __init__(self, choices: int = 1) -> None:
        """`choices`: how many there are to be. A short cut sees pieces without their index, so it cannot tell."""
        self._expected = choices
        self.pieces = 0
        self.final: Counts | None = None
        self._prefix = b""  # what stands before choices
        self.framed = b""  # the same behind a chunk's size
        self.fixed = b""  # from the end of choices to the running figures; empty: not learned
        self._lessons = 2  # the first chunk may be of another form than those with content
        self.last_running = b""  # the last running figures, decoded only when somebody asks
        self._running_counts: Counts | None = None
        self._seen: set[int] = set()
        self._finished: set[int] = set()
        self._rewriters: dict[int, Rewriter] | None = None

    @property
    def complete(self) -> bool:
        return len(self._finished) >= self._expected and self._finished >= self._seen

    def read(self, data: bytes) -> bytes | None:
        """The JSON list of choices to relay, or None when the event has nothing for the client. Raises EngineFault."""
        if self.fixed and data.startswith(self._prefix):
            choices = self._learned(data, len(self._prefix), len(data))
            if choices is not None:
                return choices
        return self.read_whole(data)

    def read_framed(self, data: bytes) -> bytes | None:
        """As `read`, for bytes that are exactly one HTTP chunk with exactly one event of the learned form; else None.

        What arrives so, and that is nearly everything, needs no other reader.
        """
        start = data.find(b"\r\n", 0, 8)
        if start < 1 or known_size(data[:start]) != len(data) - start - 4:
            return None
        if not data.startswith(self.framed, start) or data[-4:] != b"\n\n\r\n":
            return None
        if data.count(b"\n") != 4 or data.count(b"\r") != 2:
            return None
        return self._learned(data, start + len(self.framed), len(data) - 4)

    def _learned(self, data: bytes, start: int, end: int) -> bytes | None:
        """Choices that begin at `start` of a chunk that ends at `end`, if the chunk has the learned form and finishes nothing."""
        fixed = self.fixed
        at = data.rfind(fixed, start, end)
        choices = data[start : at + 1]
        if UNFINISHED not in choices or FINISHED in choices or self._finished:
            return None
        rest = data[at + len(fixed) : end]
        if rest != b"}":
            if not rest.startswith(RUNNING):
                return None
            self.last_running = rest
        self.pieces += 1
        return choices

    @property
    def has_learned(self) -> bool:
        return bool(self.fixed)

    @property
    def has_finished(self) -> bool:
        """Whether a choice has its finish_reason."""
        return bool(self._finished)

    def running(self) -> Counts | None:
        """The engine's last running figures."""
        if self.last_running:
            try:
                figures = _decode_figures(b"{" + self.last_running[1:])
            except (msgspec.DecodeError, UnicodeDecodeError):
                figures = _Figures()
            self.last_running = b""
            self._take_running(figures)
        return self._running_counts

    def _take_running(self, figures: _Figures) -> None:
        if figures.timings is not None:
            self._running_counts = figures.timings.counts()
        elif figures.usage is not None:
            self._running_counts = figures.usage.counts() or self._running_counts

    # Events of which another reader has read the like (`stream_form`). Both raise EngineFault before anything has changed

    def began(self, prefix: bytes, fixed: bytes, figures: bytes, *, content: bool) -> None:
        """The first event of a single choice. `figures`: behind what is fixed; a brace, if there are none."""
        if len(figures) > 1:
            self._take_running(_figures_of(figures))
        self._seen.add(0)
        self._lessons -= 1
        self.pieces += content
        self._prefix, self.fixed, self.framed = prefix, fixed, b"\r\ndata: " + prefix

    def finished(self, figures: bytes, *, content: bool) -> None:
        """The one that ends the choice."""
        found = _figures_of(figures) if len(figures) > 1 else None
        if self.last_running:
            self.running()
        if found is not None:
            self._take_running(found)
            if found.usage is not None:
                self.final = found.usage.counts() or self.final
        self._finished.add(0)
        self.pieces += content

    def follows(self, prefix: bytes, fixed: bytes) -> bool:
        """Whether an event with this around its choices is one of this stream's."""
        return prefix == self._prefix and fixed == self.fixed

    def read_whole(self, data: bytes) -> bytes | None:
        """As `read`, without a look at what was learned."""
        try:
            chunk = _decode_chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise EngineFault from None
        if chunk.error is not None or chunk.choices is None:
            raise EngineFault
        if self.last_running:
            self.running()  # a chunk without figures leaves those before it standing
        self._take_running(chunk)
        if chunk.usage is not None and (not chunk.choices or self._would_finish(chunk.choices)):
            self.final = chunk.usage.counts() or self.final
        if not chunk.choices:
            return None
        choices = [self.relayed(c) for c in chunk.choices]
        has_content = any(_has_content(c) for c in choices)
        self.pieces += has_content
        if self._lessons and not self._finished and (has_content or not self.fixed):
            self._learn(data, chunk.choices)
        return _encode(choices)

    def _would_finish(self, choices: list[dict[str, Any]]) -> bool:
        return all(c.get("finish_reason") is not None for c in choices)

    def relayed(self, choice: dict[str, Any]) -> dict[str, Any]:
        """What the client gets of a choice. Raises EngineFault."""
        index = choice.get("index", 0)
        if not isinstance(index, int):
            raise EngineFault
        first = index not in self._seen
        self._seen.add(index)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason in FAILED:
            raise EngineFault
        if reason is not None:
            if not isinstance(reason, str) or index in self._finished:
                raise EngineFault
            self._finished.add(index)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            if first and "role" not in delta:
                # llama.cpp leaves it out where the first token is only a part of a character.
                choice = {**choice, "delta": {"role": "assistant", **(delta or {"content": ""})}}
            elif "role" in delta and delta.get("content", "") is None and len(delta) == 2:
                choice = {**choice, "delta": {**delta, "content": ""}}
        elif is_chats(choice.get("logprobs")):
            choice = {**choice, "logprobs": self._rewriter(index).rewrite(choice["logprobs"])}
        return {key: value for key, value in choice.items() if key in CHOICE_KEYS}

    def _rewriter(self, index: int) -> Rewriter:
        if self._rewriters is None:
            self._rewriters = {}
        return self._rewriters.setdefault(index, Rewriter())

    def _learn(self, data: bytes, choices: list[dict[str, Any]]) -> None:
        """Remembers the bytes around `choices`, if taking `choices` as it is would change nothing."""
        self._lessons -= 1
        if self._rewriters or any(not CHOICE_KEYS.issuperset(choice) for choice in choices):
            return
        raw = bytes(_decode_raw(data).choices)
        start = data.find(raw)
        prefix, rest = data[:start], data[start + len(raw) :]
        cuts = [at for at in (rest.find(mark) for mark in RUNNING) if at >= 0]
        if raw.startswith(b"[") and data.endswith(b"}") and not any(mark in prefix for mark in RUNNING):
            self.framed = b"\r\ndata: " + prefix
            self._prefix, self.fixed = prefix, b"]" + (rest[: min(cuts)] if cuts else rest[:-1])


def _figures_of(rest: bytes) -> _Figures:
    try:
        return _decode_figures(b"{" + rest[1:])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise EngineFault from None


def _has_content(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    return any(value for key, value in delta.items() if key != "role")
