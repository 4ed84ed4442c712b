"""What the gateway's event loop does for its connections without being asked."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvloop


class _Ends(asyncio.Protocol):
    def __init__(self, made: asyncio.Queue[Any]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.put_nowait(transport)


async def _delays() -> list[int]:
    """TCP_NODELAY of a connection's two ends, 0 where small writes would wait for each other."""
    made: asyncio.Queue[Any] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Ends(made), "127.0.0.1", 0)
    await loop.create_connection(lambda: _Ends(made), *server.sockets[0].getsockname())
    found = []
    for _ in range(2):
        each = await made.get()
        with socket.socket(fileno=socket.dup(each.get_extra_info("socket").fileno())) as sock:
            found.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        each.close()
    server.close()
    return found


@pytest.mark.timeout(60)
def test_no_token_waits_for_the_one_before_it_to_be_acknowledged() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert all(runner.run(_delays()))
