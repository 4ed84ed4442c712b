"""What a connection to a replica needs of the event loop's transport, and what it tells whoever asked."""

from __future__ import annotations

from typing import Protocol

from berth_gateway.head import ResponseHead


class Wire(Protocol):
    """What the core needs of a transport."""

    def write(self, data: bytes) -> None: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Asker(Protocol):
    """Who waits for an answer."""

    def answered(self, head: ResponseHead) -> None:
        """The head has come."""

    def payload(self, data: bytes) -> None:
        """A part of the body, framing removed."""

    def ended(self) -> None:
        """The answer is whole."""

    def broken(self, *, answered: bool, reused: bool) -> None:
        """The connection failed: before any byte of the answer, or within it; a fresh one or one from the pool."""
