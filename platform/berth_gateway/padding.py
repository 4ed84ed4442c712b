"""Answers whose sizes say less: each write of a stream, and a whole answer, is filled up to a bucket. Pure.

Who sees only the sizes of encrypted packets can otherwise guess what an answer is about, token by token (docs/privacy.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from berth_gateway.errors import Refusal

if TYPE_CHECKING:
    from berth_gateway.exchange import Answering

BUCKET = 512  # bytes; beyond it the next power of two
_LEAST = 4  # ":" and what ends a comment, and a byte between


def bucket_of(size: int) -> int:
    """The bucket for that many bytes: as large or larger."""
    return max(BUCKET, 1 << (size - 1).bit_length())


def padded_events(data: bytes) -> bytes:
    """Whole events behind a comment, so that all of it fills a bucket. Clients skip comments; behind [DONE] nothing may come."""
    missing = bucket_of(len(data) + _LEAST) - len(data)
    return b":" + b" " * (missing - 3) + b"\n\n" + data


def padded_json(body: bytes) -> bytes:
    """JSON with blanks behind it, which mean nothing there."""
    return body.ljust(bucket_of(len(body)))


class Padded:
    """Stands between an exchange and its client, and fills up what goes by."""

    def __init__(self, client: Answering) -> None:
        self._client = client

    def refuse(self, refusal: Refusal) -> None:
        self._client.refuse(refusal)  # in our own words: says nothing of a content

    def answer(self, body: bytes) -> None:
        self._client.answer(padded_json(body))

    def stream(self, data: bytes, *, last: bool) -> None:
        self._client.stream(padded_events(data), last=last)

    def chunk_writer(self) -> Callable[[bytes], None] | None:
        return None
