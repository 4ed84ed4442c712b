"""What is looked after several times a second: deadlines, heartbeats, progress of running requests, log lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from berth_gateway.gateway import Gateway

FINISHING_SECONDS = 5.0  # how long an engine may take to end an answer that says [DONE]
PROGRESS_SECONDS = 1.0
STEP = 16  # connections or requests that are looked at without a pause


def steps(gateway: Gateway) -> Iterator[None]:
    """One round, in steps of a part of a millisecond, between which others may come: with hundreds of streams no token waits for all of
    them to be looked at."""
    now = gateway.now()
    gateway.fast.work()
    gateway.fast.look()
    for at, client in enumerate(list(gateway.clients), 1):
        if client in gateway.clients:
            client.tick(now)
        if not at % STEP:
            yield
    for at, exchange in enumerate(list(gateway.exchanges), 1):
        if exchange in gateway.exchanges:
            exchange.tick(now)
        if not at % STEP:
            yield
    gateway.slots.tick(gateway.gate.workers)
    gateway.places.tick(now)
    gateway.shadows.tick(now)
    for upstream, since in list(gateway.finishing.items()):
        if now - since > FINISHING_SECONDS:
            upstream.abort()
    if now - gateway.progress_at >= PROGRESS_SECONDS:
        gateway.progress_at = now
        running = list(gateway.exchanges)
        for at in range(0, len(running), STEP):
            some = [x for x in running[at : at + STEP] if x in gateway.exchanges]
            events = [event for x in some if (event := x.progress()) is not None]
            if events:
                gateway.spool.progress(events)
            yield
        gateway.spool.retry()
        gateway.room = gateway.spool.has_room()
    gateway.log.flush()
