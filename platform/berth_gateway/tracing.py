"""Sends traces to an OTLP collector: gathered in memory, written and sent in a thread. What it does not take is dropped."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

import msgspec

from berth_gateway.config import Otlp
from berth_gateway.contract import UsageEvent
from berth_gateway.trace import Ended, Times, Trace, begin, export_of

EVERY_SECONDS = 2.0
TIMEOUT_SECONDS = 10.0
MOST_WAITING = 5000  # requests
AT_ONCE = 500

_encode = msgspec.json.Encoder().encode


class Tracing:
    """What one gateway process traces. `counted` is told of requests by what became of their traces."""

    def __init__(self, otlp: Otlp, gateway: str, counted: Callable[[str, int], None]) -> None:
        self._otlp = otlp
        self._gateway = gateway
        self._counted = counted
        self.waiting: deque[Ended] = deque()

    def begin(self, traceparent: bytes | None) -> Trace | None:
        return begin(traceparent, self._otlp.sample)

    def ended(self, trace: Trace, request_id: str, event: UsageEvent, times: Times) -> None:
        if len(self.waiting) >= MOST_WAITING:
            self._counted("dropped", 1)
        else:
            self.waiting.append(Ended(trace, request_id, event, times))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Sends what waits. A collector that is away costs what was to be sent to it, and nothing else."""
        while self.waiting:
            some = [self.waiting.popleft() for _ in range(min(AT_ONCE, len(self.waiting)))]
            try:
                sent = await asyncio.to_thread(self._send, some)
            except (OSError, http.client.HTTPException, ValueError):
                sent = False
            self._counted("exported" if sent else "failed", len(some))
            if not sent:
                return

    def _send(self, ended: list[Ended]) -> bool:
        body = _encode(export_of(self._gateway, ended))
        url = urlsplit(self._otlp.url)
        connection: http.client.HTTPConnection
        if url.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                url.hostname or "", url.port, timeout=TIMEOUT_SECONDS, context=context
            )
        else:
            connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=TIMEOUT_SECONDS)
        try:
            headers = {"Content-Type": "application/json", **dict(self._otlp.headers)}
            connection.request("POST", url.path or "/", body, headers)
            answer = connection.getresponse()
            answer.read(64 * 1024)
            return 200 <= answer.status < 300
        finally:
            connection.close()
