"""What the streams of one replica look like but for what varies: learned from one that was read event by event. Pure.

An engine writes the same few kinds of events for every chat: a first one, those with text, one that finishes. Everything in them is
constant but an id, a time, a text and the reason of the end, so the next stream's can be recognised by comparing. What a form says
of an event is what its reader (`chunks`) has said of the like.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

import msgspec

from berth_gateway.chunks import CHOICE_KEYS, RUNNING, ChunkReader, EngineFault
from berth_gateway.express import Express, Write

MOST_EVENTS = 12  # that are read of a stream which is learned from
_MOST_BYTES = 2048  # of an event
_ID = rb"[\w.:/+=-]{1,100}"
_CREATED = rb"\d{1,15}"
_TEXT = rb'[^"\\\x00-\x1f\x7f-\xff]*'  # characters that stand for themselves in JSON
_REASONS = ("stop", "length")
_FIGURES = rb'(?P<figures>(?:,"(?:timings|usage)":\{[^\r\n]*)?\})\n\n\r\n'
_encode = msgspec.json.Encoder().encode


class _Event(msgspec.Struct):
    id: str
    created: int
    choices: list[dict[str, Any]]


class _RawChoices(msgspec.Struct):
    choices: msgspec.Raw


_decode = msgspec.json.Decoder(_Event).decode
_decode_raw = msgspec.json.Decoder(_RawChoices).decode


class Kind:
    """Events that differ in nothing but what the groups of a pattern match: prefix, fixed and figures, as ChunkReader names them, and
    `varies`: of text and reason those that `template` has places for, in its order. `has_more`: they have content besides a text."""

    __slots__ = ("_has_text", "_template", "_varies", "has_more", "match")

    def __init__(self, pattern: bytes, template: bytes, varies: list[str], *, has_more: bool) -> None:
        self.match = re.compile(pattern).match
        self._template, self._varies, self.has_more = template, varies, has_more
        self._has_text = "text" in varies

    def choices(self, found: re.Match[bytes]) -> bytes:
        """What the client gets."""
        return self._template % found.group(*self._varies) if self._varies else self._template

    def has_content(self, found: re.Match[bytes]) -> bool:
        return self.has_more or (self._has_text and found["text"] != b"")


class StreamForm:
    """`head`: of the last answer. `opening`, `closing`: what stands around a text within the choices of an event that has only text."""

    __slots__ = ("_express", "closing", "finish", "first", "head", "opening")

    def __init__(self, head: bytes, first: Kind, finish: Kind, opening: bytes, closing: bytes) -> None:
        self.head, self.first, self.finish = head, first, finish
        self.opening, self.closing = opening, closing
        self._express: Express | None = None  # the last

    def express(self, reader: ChunkReader, before: bytes, write: Write) -> Express:
        """For the chunks behind the first, which this reader has taken."""
        last = self._express
        if last is not None and last.fits(reader, before):
            return last.another(reader, before, write)
        made = self._express = Express(reader, before, write)
        made.narrow(self.opening, self.closing)
        return made


def learn(head: bytes, events: list[bytes], express: Express | None) -> StreamForm | None:
    """The form of a stream that ended well, from those of its events that were read, the last of them its usage; None if it has none
    that is usual."""
    if express is None or not express.open or not 3 <= len(events) <= MOST_EVENTS:
        return None
    try:
        first, finish = _Read(events[0]).kind(finish=False), _Read(events[-2]).kind(finish=True)
    except (msgspec.DecodeError, EngineFault, ValueError):
        return None
    return StreamForm(head, first, finish, *express.around)


class _Read:
    """One event, taken apart. Raises ValueError, DecodeError."""

    def __init__(self, data: bytes) -> None:
        if len(data) > _MOST_BYTES:
            raise ValueError("no usual event")
        event = _decode(data)
        self._raw = raw = bytes(_decode_raw(data).choices)
        start = data.find(raw)
        prefix, rest = data[:start], data[start + len(raw) :]
        cuts = [at for at in (rest.find(mark) for mark in RUNNING) if at >= 0]
        if len(event.choices) != 1 or not raw.startswith(b"[{") or any(mark in prefix for mark in RUNNING):
            raise ValueError("no usual event")
        self._choice = event.choices[0]
        self._prefix, self._fixed = prefix, b"]" + (rest[: min(cuts)] if cuts else rest[:-1])
        self._names = {b'"id":"%b"' % event.id.encode(): b'"id":"%b"' % _ID}
        self._names[b'"created":%d,' % event.created] = b'"created":%b,' % _CREATED
        if any((prefix + self._fixed).count(name) != 1 for name in self._names):
            raise ValueError("no usual event")

    def kind(self, *, finish: bool) -> Kind:
        """Of the events like this one. Raises EngineFault too."""
        choice = self._choice
        reason, delta = choice.get("finish_reason"), choice.get("delta")
        if not isinstance(delta, dict) or (reason not in _REASONS if finish else reason is not None):
            raise ValueError("no usual event")
        if not finish and not CHOICE_KEYS.issuperset(choice):
            raise ValueError("no usual event")  # its reader learns from a later one
        pattern = re.escape(self._raw[:-1])
        marks: dict[str, bytes] = {}  # what stands for that which varies
        if delta.get("content"):
            marks["text"] = mark = secrets.token_hex(16).encode()
            pattern = _opened(pattern, b"content", delta["content"], b"(?P<text>%b)" % _TEXT)
            choice = {**choice, "delta": {**delta, "content": mark.decode()}}
        if finish:
            marks["reason"] = mark = secrets.token_hex(16).encode()
            pattern = _opened(pattern, b"finish_reason", reason, b"(?P<reason>%b)" % "|".join(_REASONS).encode())
            choice = {**choice, "finish_reason": mark.decode()}
        reader = ChunkReader()
        if finish:
            reader.began(b"", b"", b"}", content=False)
        out = _encode([reader.relayed(choice)])
        if any(out.count(mark) != 1 for mark in marks.values()):
            raise ValueError("no usual event")
        varies = sorted(marks, key=lambda name: out.find(marks[name]))
        if varies:
            out = out.replace(b"%", b"%%")
        for mark in marks.values():
            out = out.replace(mark, b"%b")
        around = b"(?P<prefix>%b)%b(?P<fixed>%b)" % (self._like(self._prefix), pattern, self._like(self._fixed))
        more = any(value for key, value in delta.items() if key not in ("role", "content"))
        return Kind(rb"(?P<size>[0-9a-f]{1,7})\r\ndata: " + around + _FIGURES, out, varies, has_more=more)

    def _like(self, constant: bytes) -> bytes:
        """The pattern of bytes in which the id and the time may be others."""
        pattern = re.escape(constant)
        for name, others in self._names.items():
            pattern = pattern.replace(re.escape(name), others)
        return pattern


def _opened(pattern: bytes, name: bytes, value: object, others: bytes) -> bytes:
    """A pattern in which a field's value may be another. Raises ValueError if the field is not written plainly, once."""
    written = re.escape(b'"%b":"%b"' % (name, str(value).encode()))
    if pattern.count(written) != 1:
        raise ValueError("no usual event")
    return pattern.replace(written, b'"%b":"%b"' % (name, others))
