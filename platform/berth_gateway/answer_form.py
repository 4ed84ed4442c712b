"""What the plain answers of one replica look like but for what varies: learned from one that was read. Pure.

An engine writes the same answer again and again but for an id, a time, a text and its figures. So the next one is recognised by
comparing what stands around these; what the client gets around the text is what it got around that of the answer that was read.
"""

from __future__ import annotations

import re
import secrets

import msgspec

from berth_gateway.choices import decode_answer
from berth_gateway.chunks import FAILED, Usage

_ID = rb"[\w.:/+=-]{1,100}"
_CREATED = rb"[1-9]\d{0,14}"
_MOST_AROUND = 2048  # bytes around the text
_UNREAD = (msgspec.DecodeError, RecursionError, UnicodeError, ValueError)
_encode = msgspec.json.Encoder().encode

decode_usage = msgspec.json.Decoder(Usage).decode
check_text = msgspec.json.Decoder(msgspec.Raw).decode  # raises DecodeError for what is no JSON


class AnswerForm:
    """`opens`: matches an answer up to its text. `closing`: what stands between the text, its last quote included, and the figures;
    `last`: what follows them. `before`, `behind`: of the text, in the choices that the client gets. `other`: the form of the same
    replica's answers that ended for another reason."""

    __slots__ = ("before", "behind", "closing", "last", "opens", "other")

    def __init__(self, opening: bytes, closing: bytes, last: bytes, before: bytes, behind: bytes) -> None:
        """`opening`: a pattern."""
        self.opens = re.compile(opening).match
        self.closing, self.last = closing, last
        self.before, self.behind = before, behind
        self.other: AnswerForm | None = None


class _Envelope(msgspec.Struct):
    id: str
    created: int
    choices: msgspec.Raw
    usage: msgspec.Raw


class _Message(msgspec.Struct):
    content: msgspec.Raw


class _Choice(msgspec.Struct):
    message: _Message


_decode = msgspec.json.Decoder(_Envelope).decode
_decode_choices = msgspec.json.Decoder(list[_Choice]).decode


def learn(body: bytes) -> AnswerForm | None:
    """The form of an answer that was good; None if it has none that is usual."""
    try:
        return _learned(body)
    except _UNREAD:
        return None


def _learned(body: bytes) -> AnswerForm | None:
    envelope = _decode(body)
    (choice,) = _decode_choices(envelope.choices)
    content, usage = bytes(choice.message.content), bytes(envelope.usage)
    if content[:1] != b'"':
        return None
    opening, name, rest = body.partition(b'"content":' + content)
    opening, text, rest = opening + b'"content":"', content[1:-1], b'"' + rest
    closing, _, last = rest.rpartition(usage)
    if not name or not closing.endswith(b'"usage":') or len(opening) + len(rest) > _MOST_AROUND:
        return None
    # Read anew with another text, other figures, another id and time: what is taken for these is these, whatever else stands there.
    mark, figures = secrets.token_hex(16).encode(), [secrets.randbelow(1 << 40) for _ in range(2)]
    pattern, opened = re.escape(opening), opening
    varies: list[tuple[bytes, bytes, bytes]] = [
        (b'"id":"%b"' % envelope.id.encode(), b'"id":"x"', b'"id":"%b"' % _ID),
        (b'"created":%d,' % envelope.created, b'"created":7,', b'"created":%b,' % _CREATED),
    ]
    for mine, others, like in varies:
        if opening.count(mine) != 1 or pattern.count(re.escape(mine)) != 1:
            return None
        pattern, opened = pattern.replace(re.escape(mine), like), opened.replace(mine, others)
    told = b'{"prompt_tokens":%d,"completion_tokens":%d}' % tuple(figures)
    other = opened + mark + closing + told + last
    answer, twin = decode_answer(other), _decode(other)
    read = answer.usage
    if read is None or [read.prompt_tokens, read.completion_tokens] != figures or answer.error is not None:
        return None
    if (twin.id, twin.created) != ("x", 7) or answer.choices[0].finish_reason in FAILED:
        return None
    before, found, behind = _encode(answer.choices).partition(mark)
    same = _encode(decode_answer(body).choices) == before + text + behind
    if len(answer.choices) != 1 or not found or not same or b'"message":{' not in before[20:120]:
        return None
    return AnswerForm(pattern, closing, last, before, behind)
