"""As much HTTP/1.1 as an engine behind a gateway needs: bounded heads and bodies, keep-alive, event streams, leaving clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

_HEAD_BYTES: Final = 64 * 1024
_BODY_BYTES: Final = 64 << 20
_IDLE_SECONDS: Final = 600.0
_REASONS: Final = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}


class BadHttp(Exception):
    """The client speaks something else. `status` is what it is told."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


class Request:
    """A request with its body."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes, gone: asyncio.Event) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.gone = gone  # set when the client has left


class Answer:
    """Writes one answer: `whole`, or `begin`, any number of `send`, and `end`."""

    def __init__(self, writer: asyncio.StreamWriter, keep: bool) -> None:
        self._writer = writer
        self._keep = keep
        self.begun = False
        self.finished = False

    async def whole(self, status: int, body: bytes, kind: str = "application/json", more: str = "") -> None:
        self.begun = self.finished = True
        self._writer.write(self._head(status, kind, f"Content-Length: {len(body)}\r\n{more}") + body)
        await self._writer.drain()

    async def begin(self) -> None:
        """An event stream follows."""
        self.begun = True
        self._writer.write(
            self._head(
                200, "text/event-stream; charset=utf-8", "Transfer-Encoding: chunked\r\nCache-Control: no-cache\r\n"
            )
        )

    async def send(self, data: bytes) -> None:
        if data:
            self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await self._writer.drain()

    async def end(self) -> None:
        self.finished = True
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def _head(self, status: int, kind: str, more: str) -> bytes:
        connection = "keep-alive" if self._keep else "close"
        reason = _REASONS.get(status, "Status")
        head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nConnection: {connection}\r\n{more}\r\n"
        return head.encode("latin-1")


Handler = Callable[[Request, Answer], Awaitable[None]]


class _Protocol(asyncio.StreamReaderProtocol):
    """Notices at once that a client has left, also while nobody reads from it."""

    def __init__(self, reader: asyncio.StreamReader, serve: Any, gone: asyncio.Event) -> None:
        super().__init__(reader, serve)
        self._gone = gone

    def eof_received(self) -> bool | None:
        self._gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        super().connection_lost(exc)


class Server:
    """Calls `handler` for each request, of one connection one after the other."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def listen(self, host: str, port: int) -> int:
        """The port on which it listens."""
        server = await asyncio.get_running_loop().create_server(self._protocol, host, port, backlog=1024)
        self._server = server
        return int(server.sockets[0].getsockname()[1])

    def _protocol(self) -> asyncio.BaseProtocol:
        gone = asyncio.Event()
        reader = asyncio.StreamReader(limit=_HEAD_BYTES)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await self._connection(reader, writer, gone)
            writer.close()

        return _Protocol(reader, serve, gone)

    async def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event
    ) -> None:
        keep = True
        while keep and not gone.is_set():
            try:
                request, keep = await _read(reader, writer, gone)
            except BadHttp as bad:
                await Answer(writer, keep=False).whole(bad.status, b"{}")
                return
            answer = Answer(writer, keep)
            await self._handler(request, answer)
            keep = keep and answer.finished


async def _read(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event
) -> tuple[Request, bool]:
    try:
        async with asyncio.timeout(_IDLE_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise BadHttp(431) from None
    first, *lines = head[:-4].split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        raise BadHttp(400)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        key = name.decode("latin-1").lower()
        if not colon or key in headers:
            raise BadHttp(400)
        headers[key] = value.decode("latin-1").strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    async with asyncio.timeout(_IDLE_SECONDS):
        body = await _body(reader, headers)
    keep = words[2] == b"HTTP/1.1" and headers.get("connection", "").lower() != "close"
    path = words[1].decode("latin-1").partition("?")[0]
    return Request(words[0].decode("latin-1"), path, headers, body, gone), keep


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        if length is not None or coding.lower() != "chunked":
            raise BadHttp(400)
        return await _chunks(reader)
    if length is None:
        return b""
    if not length.isascii() or not length.isdigit():
        raise BadHttp(400)
    if len(length) > 12 or int(length) > _BODY_BYTES:
        raise BadHttp(413)
    return await reader.readexactly(int(length))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        try:
            size = int((await reader.readuntil(b"\r\n")).partition(b";")[0].strip(), 16)
        except (ValueError, asyncio.LimitOverrunError):
            raise BadHttp(400) from None
        if size < 0 or len(body) + size > _BODY_BYTES:
            raise BadHttp(413)
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise BadHttp(400)
        if size == 0:
            return bytes(body)
