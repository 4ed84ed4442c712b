"""Answers that come in one piece: read strictly, and written anew from the parts that are known. Pure."""

from __future__ import annotations

import base64
import binascii
import struct
import sys
from array import array
from typing import Any

import msgspec
from msgspec import Struct

from berth_gateway.account import Facts
from berth_gateway.chunks import EngineFault
from berth_gateway.errors import Refusal
from berth_gateway.meter import Counts
from berth_gateway.relay import Relayed

MAX_ANSWER = 256 * 1024 * 1024  # bytes; an engine that sends more is at fault


class WholeReader:
    """`pieces` is one once an answer is there: what it used is then owed, whoever counted it."""

    __slots__ = ("complete", "final", "pieces")
    has_learned = False

    def __init__(self) -> None:
        self.pieces = 0
        self.final: Counts | None = None
        self.complete = False

    def running(self) -> Counts | None:
        return None


class WholeRelay:
    """Collects the engine's JSON. What is in it and what is made of it, the kinds below know."""

    media = b"application/json"

    def __init__(self, facts: Facts) -> None:
        self.reader = WholeReader()
        self.facts = facts
        self._data = bytearray()

    def feed(self, data: bytes) -> Relayed:
        self._data += data
        return Relayed(fault=len(self._data) > MAX_ANSWER)

    def feed_framed(self, data: bytes) -> bytes | None:
        return None

    def finish(self) -> Relayed:
        data, self._data = bytes(self._data), bytearray()
        try:
            self.reader.final = self.read(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, EngineFault):
            return Relayed(fault=True)
        self.reader.pieces, self.reader.complete = 1, True
        return Relayed(done=True)

    def last_events(self, usage: Counts) -> bytes:
        return b""

    def answer(self, usage: Counts) -> bytes:
        return msgspec.json.encode(self.write(usage))

    def error_event(self, refusal: Refusal) -> bytes:
        return refusal.body()

    def read(self, data: bytes) -> Counts | None:
        """Keeps what the answer needs; gives the engine's figures, if it has any. Raises EngineFault, DecodeError."""
        raise NotImplementedError

    def write(self, usage: Counts) -> Any:
        raise NotImplementedError


class _Usage(Struct):
    prompt_tokens: int | None = None
    total_tokens: int | None = None

    def counts(self) -> Counts | None:
        prompt = self.total_tokens if self.prompt_tokens is None else self.prompt_tokens
        return None if prompt is None else Counts(prompt=prompt)


def _prompt_usage(usage: Counts) -> dict[str, int]:
    return {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}


class _Vector(Struct):
    embedding: list[float] | str
    index: int


class _Vectors(Struct):
    data: list[_Vector]
    usage: _Usage | None = None


_decode_vectors = msgspec.json.Decoder(_Vectors).decode


class VectorsRelay(WholeRelay):
    """Embeddings, in the encoding that was asked for, whichever the engine has."""

    def read(self, data: bytes) -> Counts | None:
        found = _decode_vectors(data)
        count = self.facts.prepared.prompts
        if sorted(item.index for item in found.data) != list(range(count)):
            raise EngineFault
        encode = as_base64 if self.facts.prepared.notes == "base64" else as_floats
        self._vectors = [encode(item.embedding) for item in sorted(found.data, key=lambda item: item.index)]
        return found.usage.counts() if found.usage else None

    def write(self, usage: Counts) -> Any:
        data = [{"object": "embedding", "index": at, "embedding": v} for at, v in enumerate(self._vectors)]
        return {"object": "list", "data": data, "model": self.facts.route.name, "usage": _prompt_usage(usage)}


def as_base64(vector: list[float] | str) -> str:
    """Little-endian float32, packed. Raises EngineFault."""
    if isinstance(vector, str):
        as_floats(vector)
        return vector
    try:
        packed = array("f", vector)
    except OverflowError:
        raise EngineFault from None
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()


def as_floats(vector: list[float] | str) -> list[float]:
    """Raises EngineFault."""
    if not isinstance(vector, str):
        return vector
    try:
        data = base64.b64decode(vector, validate=True)
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    except (binascii.Error, struct.error, ValueError):
        raise EngineFault from None


class _Rank(Struct):
    index: int
    relevance_score: float


class _Ranking(Struct):
    results: list[_Rank]
    usage: _Usage | None = None


_decode_ranking = msgspec.json.Decoder(_Ranking).decode


class RankingRelay(WholeRelay):
    """Documents by relevance, best first. `notes`: the documents to show (or None) and how many."""

    def read(self, data: bytes) -> Counts | None:
        found = _decode_ranking(data)
        if sorted(rank.index for rank in found.results) != list(range(self.facts.prepared.prompts)):
            raise EngineFault
        self._ranks = sorted(found.results, key=lambda rank: -rank.relevance_score)
        return found.usage.counts() if found.usage else None

    def write(self, usage: Counts) -> Any:
        shown, top = self.facts.prepared.notes
        results: list[dict[str, Any]] = []
        for rank in self._ranks[:top]:
            result: dict[str, Any] = {"index": rank.index, "relevance_score": rank.relevance_score}
            if shown is not None:
                result["document"] = {"text": shown[rank.index]}
            results.append(result)
        return {
            "id": f"rerank-{self.facts.event_id.replace('-', '')}",
            "model": self.facts.route.name,
            "results": results,
            "usage": _prompt_usage(usage),
        }


class _AudioUsage(Struct):
    type: str | None = None
    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None

    def counts(self) -> Counts | None:
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return Counts(prompt=self.input_tokens, completion=self.output_tokens)


class _Segment(Struct):
    id: int
    start: float
    end: float
    text: str


class _Word(Struct):
    word: str
    start: float
    end: float


class _Transcript(Struct):
    text: str
    usage: _AudioUsage | None = None
    language: str | None = None
    duration: float | str | None = None
    segments: list[_Segment] | None = None
    words: list[_Word] | None = None


_decode_transcript = msgspec.json.Decoder(_Transcript).decode


class TranscriptRelay(WholeRelay):
    """What was said. An engine that bills by the second names no tokens: then the text's length is the estimate."""

    def read(self, data: bytes) -> Counts | None:
        self._found = _decode_transcript(data)
        return self._found.usage.counts() if self._found.usage else None

    def finish(self) -> Relayed:
        relayed = super().finish()
        if relayed.done and self.reader.final is None:
            self.reader.pieces = max(1, len(self._found.text.encode()) // 4)
        return relayed

    def write(self, usage: Counts) -> Any:
        found = self._found
        out: dict[str, Any] = {"text": found.text}
        if self.facts.prepared.notes:
            shown = {
                "language": found.language,
                "duration": found.duration,
                "segments": found.segments,
                "words": found.words,
            }
            out |= {name: value for name, value in shown.items() if value is not None}
        if found.usage is not None and found.usage.seconds is not None:
            out["usage"] = {"type": "duration", "seconds": found.usage.seconds}
        elif self.reader.final is not None:
            total = usage.prompt + usage.completion
            out["usage"] = {
                "type": "tokens",
                "input_tokens": usage.prompt,
                "output_tokens": usage.completion,
                "total_tokens": total,
            }
        return out


class _TokenCount(Struct):
    input_tokens: int | None = None  # llama.cpp
    count: int | None = None  # vLLM


_decode_count = msgspec.json.Decoder(_TokenCount).decode


class TokenCountRelay(WholeRelay):
    """How long a prompt is. Nothing is generated, so nothing is billed."""

    def read(self, data: bytes) -> Counts | None:
        found = _decode_count(data)
        count = found.input_tokens if found.input_tokens is not None else found.count
        if count is None or count < 0:
            raise EngineFault
        self._count = count
        return Counts()

    def write(self, usage: Counts) -> Any:
        return {"input_tokens": self._count}
