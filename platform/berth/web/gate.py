"""What stands before Django: bodies of a bounded size, and so many requests at once that the database has room for all.

Django reads a request's whole body before it knows who asks, onto the disk if it is large, and gives each request a thread and a
database connection of its own. Without bounds strangers could fill the disk, or take every connection that the workers need.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import uuid_utils

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGE_AT_ONCE = 8  # large bodies that are read at a time, so that they cannot fill the memory
LARGE_SECONDS = 120.0  # that a large body may take
AT_ONCE = 24  # requests that may use the database; PostgreSQL's own default is 100 connections for everybody


class _TooLarge(Exception):
    pass


class _Gone(Exception):
    """The client left in the middle of its body."""


class Gate:
    """An ASGI application around another. A body is read before its request takes one of `at_once` places, so a slow sender holds
    none; an event stream gives its place back when it begins."""

    def __init__(
        self,
        app: App,
        *,
        most_body: int,
        at_once: int = AT_ONCE,
        large: re.Pattern[str] | None = None,
        most_large: int = 0,
    ) -> None:
        """`large`: addresses that take bodies of up to `most_large` bytes: parts of uploads."""
        self._app = app
        self._most_body = most_body
        self._places = asyncio.Semaphore(at_once)
        self._large, self._most_large = large, most_large
        self._large_places = asyncio.Semaphore(LARGE_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._most_body
        try:
            if self._large is not None and self._large.fullmatch(scope["path"]):
                most = self._most_large
                async with self._large_places, asyncio.timeout(LARGE_SECONDS):
                    body = await self._read(scope, receive, most)
            else:
                body = await self._read(scope, receive, most)
        except (_Gone, TimeoutError):
            return
        except _TooLarge:
            await self._refuse(send, most)
            return
        if not scope["path"].startswith("/api/"):  # files of the dashboard: no database
            await self._app(scope, _again(body, receive), send)
            return
        place = _Place(self._places)
        await place.take()
        try:
            await self._app(scope, _again(body, receive), place.until_stream(send))
        finally:
            place.give_back()

    async def _read(self, scope: Scope, receive: Receive, most: int) -> bytes:
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value[:20]) > most:
                raise _TooLarge
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                raise _TooLarge
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _refuse(self, send: Send, most: int) -> None:
        number = f"req_{uuid_utils.uuid7().hex}"
        error = {
            "code": "body_too_large",
            "message": f"The body is larger than {most} bytes, which is the most that is read. Send less.",
            "params": {"most": most},
            "field": None,
            "request_id": number,
        }
        content = json.dumps({"error": error}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"x-request-id", number.encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": content})


class _Place:
    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._held = False

    async def take(self) -> None:
        await self._places.acquire()
        self._held = True

    def give_back(self) -> None:
        if self._held:
            self._held = False
            self._places.release()

    def until_stream(self, send: Send) -> Send:
        async def passed_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                types = [value for name, value in message.get("headers", ()) if name.lower() == b"content-type"]
                if any(value.startswith(b"text/event-stream") for value in types):
                    self.give_back()
            await send(message)

        return passed_on


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, whole, and after it what the server says."""
    said = False

    async def read() -> Message:
        nonlocal said
        if said:
            return await receive()
        said = True
        return {"type": "http.request", "body": body, "more_body": False}

    return read
