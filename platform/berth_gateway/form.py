"""A message's head but for the number in Content-Length: what the next one on a connection will begin and end with. Pure."""

from __future__ import annotations

_LENGTH = b"content-length:"


class Form:
    """A head but for the number in Content-Length: the bytes before it and behind it, and how many they are."""

    __slots__ = ("at", "before", "behind", "skip")

    def __init__(self, before: bytes, behind: bytes) -> None:
        self.before, self.behind = before, behind
        self.at, self.skip = len(before), len(behind)


def form_of(raw: bytes, length: int) -> Form | None:
    """The form of a whole head that says `length`; None if it does not say so plainly."""
    at = raw.lower().find(b"\r\n" + _LENGTH)
    if at < 0:
        return None
    start = at + 2 + len(_LENGTH)
    while raw[start : start + 1] == b" ":
        start += 1
    end = raw.find(b"\r\n", start)
    return Form(raw[:start], raw[end:]) if raw[start:end] == b"%d" % length else None
