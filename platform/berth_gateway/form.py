"""A message's head but for the number in Content-Length: what the next one on a connection will begin and end with. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from berth_gateway.sample import Sample

_LENGTH = b"content-length:"
_MOST_DIGITS = 16


class Form:
    """A head but for the number in Content-Length: the bytes before it and behind it, and how many they are.

    `digits`: of the number that was seen last, because the next will probably have as many. `head`: the one that came last, and
    `size` of what it came with, because clients repeat themselves. `sample`: of such a body; `misses`: bodies since that were others.
    """

    __slots__ = ("at", "before", "behind", "digits", "head", "head_size", "misses", "sample", "size", "skip")

    def __init__(self, before: bytes, behind: bytes, digits: int = 1) -> None:
        self.before, self.behind, self.digits = before, behind, digits
        self.at, self.skip = len(before), len(behind)
        self.head, self.head_size, self.size = b"", 0, 0
        self.sample: Sample | None = None
        self.misses = 0

    def body(self, data: bytes) -> bytes | None:
        """What follows the head, if `data` is a head of this form and exactly the body that it announces."""
        if len(data) == self.size and data[: self.head_size] == self.head:
            return data[self.head_size :]
        end = self.at + self.digits + self.skip
        body = data[end:]
        # One comparison of slices: startswith() and find() take longer to read their arguments than to do their work.
        head = b"%b%d%b" % (self.before, len(body), self.behind)
        if data[:end] == head:
            self.head, self.head_size, self.size = head, end, len(data)
            return body
        return self._searched(data)

    def length_in(self, size: int) -> int:
        """The length of the body in a whole message of so many bytes; -1 if there is none."""
        rest = size - self.at - self.skip
        for digits in range(1, _MOST_DIGITS):
            if len(b"%d" % max(0, rest - digits)) == digits:
                return rest - digits
        return -1

    def _searched(self, data: bytes) -> bytes | None:
        start = self.at
        end = data.find(b"\r", start, start + _MOST_DIGITS)
        if not data.startswith(self.before) or not data.startswith(self.behind, end):
            return None
        body = data[end + self.skip :]
        if data[start:end] != b"%d" % len(body):
            return None
        self.digits = end - start
        return body

    def is_begun(self, data: bytes, most: int) -> bool:
        """Whether `data` is a head of this form and a part of the body that it announces, of at most so many bytes."""
        start = self.at
        end = data.find(b"\r", start, start + _MOST_DIGITS)
        if not data.startswith(self.before) or not data.startswith(self.behind, end):
            return False
        digits = data[start:end]
        return digits.isdigit() and len(data) - end - self.skip < int(digits) <= most


def form_of(raw: bytes, length: int) -> Form | None:
    """The form of a whole head that says `length`; None if it does not say so plainly."""
    at = raw.lower().find(b"\r\n" + _LENGTH)
    if at < 0:
        return None
    start = at + 2 + len(_LENGTH)
    while raw[start : start + 1] == b" ":
        start += 1
    end = raw.find(b"\r\n", start)
    return Form(raw[:start], raw[end:], end - start) if raw[start:end] == b"%d" % length else None
