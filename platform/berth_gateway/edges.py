"""The two asyncio protocols: sockets on one side, Client and Upstream on the other. Nothing is decided here.

uvloop itself switches Nagle's algorithm off on every TCP connection, and writes what it is given at once.
"""

from __future__ import annotations

import asyncio
from typing import cast

from berth_gateway.client import Client
from berth_gateway.gateway import Gateway
from berth_gateway.upstream import Upstream
from berth_gateway.wire import Wire

CONNECT_SECONDS = 5.0


class ClientEdge(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, gateway: Gateway, *, admin: bool = False) -> None:
        self._gateway = gateway
        self._admin = admin
        self._client: Client | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        loopback = isinstance(peer, tuple) and (peer[0].startswith("127.") or peer[0] == "::1")
        address = peer[0] if isinstance(peer, tuple) else None
        client = self._client = Client(self._gateway, loopback=loopback, admin=self._admin, peer=address)
        client.opened(cast("Wire", transport))
        # uvloop looks this up when it is told the protocol: without a method in between it is one call less a request.
        self.data_received = client.received  # type: ignore[method-assign]
        cast("asyncio.Transport", transport).set_protocol(self)

    def eof_received(self) -> bool:
        """A client that closes its side has left: what runs for it stops now, not after its buffer is empty."""
        self._end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.lost()

    def pause_writing(self) -> None:
        if self._client is not None:
            self._client.full()

    def resume_writing(self) -> None:
        if self._client is not None:
            self._client.drained()


class UpstreamEdge(asyncio.Protocol):
    """A connection to a replica."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        # uvloop looks this up once, when the connection is made: without a method in between it is one call less a chunk.
        self.data_received = upstream.received  # type: ignore[method-assign, assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._upstream.opened(cast("Wire", transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._upstream.lost()


class Dialer:
    """Connects upstreams in the background."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, upstream: Upstream) -> None:
        task = self._loop.create_task(self._connect(upstream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, upstream: Upstream) -> None:
        host, port, _ = upstream.where
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._loop.create_connection(lambda: UpstreamEdge(upstream), host, port)
        except (OSError, TimeoutError):
            upstream.failed()
