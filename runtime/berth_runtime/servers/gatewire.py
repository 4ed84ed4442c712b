"""What the door before an engine reads and writes of HTTP. Used by `gate.py`."""

from __future__ import annotations

import asyncio
import json

_CHUNK = 64 * 1024
_MOST_CHUNK = 64 << 20  # bytes


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body. Raises OSError."""
    try:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        code = first.split(b" ")[1:2]
        if not first.startswith(b"HTTP/1.") or not code or not code[0].isdigit():
            raise ConnectionError("no HTTP answer")
        for line in lines:
            name, _, value = line.lower().partition(b":")
            if name == b"content-length":
                return int(code[0]), await reader.readexactly(int(value))
        return int(code[0]), await reader.read()
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        raise ConnectionError("no HTTP answer") from None


async def body(head: bytes, reader: asyncio.StreamReader, inner: asyncio.StreamWriter) -> None:
    """Passes one request's body on. Raises ValueError if its length is not clear."""
    headers = [line.lower() for line in head.split(b"\r\n")[1:]]
    lengths = [line.partition(b":")[2].strip() for line in headers if line.startswith(b"content-length:")]
    codings = [line.partition(b":")[2].strip() for line in headers if line.startswith(b"transfer-encoding:")]
    if len(lengths) + len(codings) > 1 or any(coding != b"chunked" for coding in codings):
        raise ValueError("unclear length")
    if codings:
        return await chunks(reader, inner)
    left = int(lengths[0]) if lengths and lengths[0].isdigit() else 0
    while left:
        data = await reader.read(min(left, _CHUNK))
        if not data:
            raise ConnectionError("the client left")
        inner.write(data)
        await inner.drain()
        left -= len(data)
    return None


async def chunks(reader: asyncio.StreamReader, inner: asyncio.StreamWriter) -> None:
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.partition(b";")[0].strip(), 16)
        if not 0 <= size <= _MOST_CHUNK:
            raise ValueError("unclear length")
        inner.write(line + await reader.readexactly(size) + await reader.readexactly(2))
        await inner.drain()
        if size == 0:
            return


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()


async def answer(writer: asyncio.StreamWriter, status: int, code: str) -> None:
    body = json.dumps(
        {"error": {"message": code, "type": "invalid_request_error", "param": None, "code": code}}
    ).encode()
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
