"""What a connection to a replica calls with the bytes that come: one function, because nearly all of them are chunks of the narrow form
(`express`), and a call, or an attribute, for each of them is what a gateway's time goes into.

What is known of the next chunk are the function's default arguments. They change with each stream; the event loop, which has looked the
function up when the connection was made, need not know.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from berth_gateway.express import LINES, SIZES, UNKNOWN

if TYPE_CHECKING:
    from berth_gateway.upstream import Upstream


def receiver(upstream: Upstream) -> FunctionType:
    """For one connection. Its `__defaults__` are `Express.constants`, or UNKNOWN: then everything is left to `Upstream.came`."""

    def received(
        data: bytes, less: int, most: int, cut: int, rear: int, begin: bytes, end: bytes, reader: Any,
        write: Callable[[bytes], None], base: int, opening: bytes, after: bytes,
    ) -> None:  # fmt: skip
        size = len(data) - less
        if size < most:
            text = data[cut:rear]
            # Line ends by their numbers: a test for b"\n" costs ten times as much, because it is first tried as a number.
            if data == b"".join((SIZES[size], begin, text, end)) and not (34 in text or 10 in text or 13 in text):
                reader.pieces += 1
                write(b"".join((LINES[size + base], opening, text, after)))
                return
        upstream.came(data)

    received.__defaults__ = UNKNOWN
    return received  # type: ignore[return-value]


def ignore(data: bytes) -> None:
    """A connection that is gone has nothing more to say."""
