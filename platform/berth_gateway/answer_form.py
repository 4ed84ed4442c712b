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

# What follows the choices in a client's answer, for the figures; without those that are nearly always 0.
USAGE = (
    b',"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},'
    b'"completion_tokens_details":{"reasoning_tokens":%d}}}'
)
PLAIN_USAGE = USAGE.replace(b'_tokens":%d}', b'_tokens":0}')
_ID = rb"[\w.:/+=-]{1,100}"
_CREATED = rb"[1-9]\d{0,14}"
_MOST_AROUND = 2048  # bytes around the text
_UNREAD = (msgspec.DecodeError, RecursionError, UnicodeError, ValueError)
_encode = msgspec.json.Encoder().encode


class _Answer(msgspec.Struct):
    """What of an answer of a known form is to be read."""

    usage: Usage
    error: msgspec.Raw | None = None


decode = msgspec.json.Decoder(_Answer).decode
check_text = msgspec.json.Decoder(msgspec.Raw).decode  # raises DecodeError for what is no JSON


class AnswerForm:
    """`other`: the form of the same replica's answers that ended for another reason.

    `parts`: what stands before the id, before the time and before the text; between the text, its last quote included, and the figures,
    and the size of that; behind the figures, and its size; what the client gets of the choices before the text, to be formatted,
    and its size; what it gets behind it with places for prompt, completion and their sum, and the same with places for details too.

    `places` in the last such answer: where the id begins and ends, the time begins and ends, the text begins; how far from its end
    that ends.
    """

    __slots__ = ("_opens", "other", "parts", "places")

    def __init__(self, opening: list[bytes], closing: bytes, last: bytes, before: bytes, behind: bytes) -> None:
        first, second, third = opening
        varies = b"(%b)%b(%b)" % (_ID, re.escape(second), _CREATED)
        self._opens = re.compile(re.escape(first) + varies + re.escape(third)).match
        escaped = behind.replace(b"%", b"%%")
        self.parts = (
            first, second, third, closing, len(closing), last, len(last), before.replace(b"%", b"%%"), len(before),
            escaped + PLAIN_USAGE, escaped + USAGE,
        )  # fmt: skip
        self.places = 0, 0, 0, 0, 0, 0
        self.other: AnswerForm | None = None

    def find(self, data: bytes, at: int) -> AnswerForm | None:
        """Which of the two forms the answer has whose body begins at `at`; `places` are then as they are in it."""
        other = self.other
        return self if self._is(data, at) else other if other is not None and other._is(data, at) else None

    def _is(self, data: bytes, at: int) -> bool:
        found, closing, last = self._opens(data, at), self.parts[3], self.parts[5]
        if found is None or not data.endswith(last):
            return False
        begins = found.end()
        ends = data.rfind(closing, begins)
        if ends < 0:
            return False
        self.places = (
            found.start(1) - at, found.end(1) - at, found.start(2) - at, found.end(2) - at, begins - at, len(data) - ends
        )  # fmt: skip
        return True


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
    opening, text, behind = opening + b'"content":"', content[1:-1], b'"' + rest
    closing, _, last = behind.rpartition(usage)
    if not name or not closing.endswith(b'"usage":') or len(opening) + len(behind) > _MOST_AROUND:
        return None
    # Read anew with another text, other figures, another id and time: what is taken for these is these, whatever else stands there.
    mark, figures = secrets.token_hex(16).encode(), [secrets.randbelow(1 << 40) for _ in range(2)]
    first, of_id, rest = opening.partition(b'"id":"%b"' % envelope.id.encode())
    second, of_time, third = rest.partition(b'"created":%d,' % envelope.created)
    if not of_id or not of_time:
        return None
    first, second, third = first + b'"id":"', b'"' + second + b'"created":', b"," + third
    opened = b"%bx%b7%b" % (first, second, third)
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
    return AnswerForm([first, second, third], closing, last, before, behind)
