"""A usual body but for the text of its last message: what the next one with the same head will probably be, too. Pure.

Between the quotes of that text only characters are taken that stand for themselves in JSON, so that whatever else the body says has
been read already, and what an engine is sent is what it would be sent had this body been read as well.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from berth_gateway.usual import UNUSUAL, decode

if TYPE_CHECKING:
    from berth_gateway.form import Form
    from berth_gateway.grant import Grant

MOST_BODY = 4096  # bytes of a body that is kept
MOST_TEXT = 1024  # bytes of a text that is looked through; a longer one is read faster
MOST_SHAPES = 64
# What has to be escaped, what may be an escape, and what is not ASCII.
UNPLAIN = bytes(range(0x20)) + b'"\\' + bytes(range(0x7F, 0x100))
_MARK = secrets.token_hex(16)
_encode = msgspec.json.Encoder().encode


class Shape(NamedTuple):
    """A request of so many bytes: where its text begins and ends and how long it is, what stands before and behind it; the tokens and the
    cost that are taken for it, and how many tokens its answer may have; what the engine is sent before the request id, between
    that and the text, and behind it."""

    begins: int
    ends: int
    length: int
    before: bytes
    behind: bytes
    units: int
    cost: int
    limit: int
    opening: bytes
    between: bytes
    closing: bytes


class Sample:
    """`before`, `behind`: of the text, in what clients send; `sent_before`, `sent_behind`: in what engines are sent, without the
    last brace. `limit`: tokens that the answer may have; None: what is left of the context. `shown`: whether a client
    that streams sees the usage.
    """

    __slots__ = (
        "at",
        "before",
        "behind",
        "grant",
        "least",
        "limit",
        "sent_before",
        "sent_behind",
        "shapes",
        "shown",
        "skip",
        "stream",
    )

    def __init__(
        self, grant: Grant, body: tuple[bytes, bytes], sent: tuple[bytes, bytes], limit: int | None, *, stream: bool, shown: Any
    ) -> None:  # fmt: skip
        self.grant, self.limit, self.stream, self.shown = grant, limit, stream, shown
        self.before, self.behind = body
        self.sent_before, self.sent_behind = sent
        self.at, self.skip = len(self.before), len(self.behind)
        self.least = self.at + self.skip
        self.shapes: dict[int, Shape] = {}  # by the size of requests, their heads included

    def shape(self, size: int, form: Form) -> Shape | None:
        """What is known of requests of so many bytes with this head, for the only replica; None if none is like this one."""
        grant, target = self.grant, self.grant.only
        length = form.length_in(size)
        text = length - self.least
        if target is None or not 0 <= text <= MOST_TEXT or length > grant.most_body:
            return None
        limit, whole = self.limit, len(self.sent_before) + text + len(self.sent_behind)
        if limit is None:
            limit, end = grant.context, grant.end_without_limit(whole + 1)
        else:
            end = grant.end(limit)
        sent = whole + len(end)
        units, cost = grant.demand(sent, limit)
        before = b"%b%d%b%b" % (form.before, length, form.behind, self.before)
        opening, between = (target.ask % (_MARK.encode(), sent, self.sent_before, b"")).split(_MARK.encode())
        if len(self.shapes) >= MOST_SHAPES:
            self.shapes.clear()
        found = self.shapes[size] = Shape(
            len(before), size - self.skip, text, before, self.behind, units, cost, limit, opening, between, self.sent_behind + end
        )  # fmt: skip
        return found


def split(body: bytes, asked: Any) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]] | None:
    """A body, and what is sent for it (`asked`, changed as it has to be), each before and behind the text; None if it is not that plain."""
    text: str = asked.messages[-1].content
    raw = text.encode()
    if len(body) > MOST_BODY or not raw or raw.translate(None, UNPLAIN) != raw:
        return None
    at = body.rfind(b'"%b"' % raw) + 1
    before, behind = body[:at], body[at + len(raw) :]
    try:
        other = decode(before + _MARK.encode() + behind)
    except UNUSUAL:
        return None
    last = other.messages[-1]
    if last.content != _MARK:
        return None
    last.content = text
    if other != decode(body):
        return None
    asked.messages[-1].content = _MARK
    parts = _encode(asked).split(_MARK.encode())
    asked.messages[-1].content = text
    return ((before, behind), (parts[0], parts[1][:-1])) if len(parts) == 2 else None
