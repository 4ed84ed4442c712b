"""What requests wait for: a small deterministic simulation of continuous batching with chunked prefill.

Seconds. Equal requests from clients that each wait for their answer (and think) before they ask again. A step decodes one token for
every running sequence and works on as many prompt tokens as the token budget leaves. Two starts bound what happens in practice: all clients
at once (burst), or spread evenly over one answer's time (steady).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import msgspec

from berth.planner.placement import Placement
from berth.planner.serving import Load, held_tokens, steady
from berth.planner.step import decode_step, prefill, prefill_work

BURST: Final = "burst"
STEADY: Final = "steady"


class Server(msgspec.Struct, frozen=True):
    cache_tokens: float
    max_sequences: int
    token_budget: int  # of a step: decoded and prompt tokens together


class Waits(msgspec.Struct, frozen=True):
    """Times to the first token of all requests, sorted."""

    times: tuple[float, ...]

    def quantile(self, share: float) -> float:
        return self.times[min(len(self.times) - 1, int(share * len(self.times)))]

    @property
    def mean(self) -> float:
        return sum(self.times) / len(self.times)


class _Run:
    """The state of one simulation. All running sequences get a token in the same step, so each leaves in the order it came."""

    def __init__(self, place: Placement, load: Load, server: Server, requests: int, gap: float, think: float) -> None:
        self.place, self.load, self.server, self.think = place, load, server, think
        self.context = load.input + load.output / 2.0
        self.held = held_tokens(place, load)
        self.now, self.steps, self.issued, self.requests = 0.0, 0, 0, requests
        self.arrivals: deque[float] = deque()
        self.prompts: deque[list[float]] = deque()  # [arrival, tokens left]
        self.leaving: deque[int] = deque()  # the step after which each running sequence ends
        self.times: list[float] = []
        for client in range(int(load.concurrency)):
            self._issue(client * gap)
        self.decode = lru_cache(maxsize=None)(lambda batch: decode_step(place, batch, self.context))
        self.work = lru_cache(maxsize=None)(lambda tokens: prefill_work(place, tokens))
        self.base = place.value("ttft_base_ms") / 1e3

    def _issue(self, at: float) -> None:
        if self.issued < self.requests:
            self.issued += 1
            self.arrivals.append(at)

    def run(self) -> Waits:
        while len(self.times) < self.requests:
            while self.arrivals and self.arrivals[0] <= self.now + 1e-12:
                self.prompts.append([self.arrivals.popleft(), self.load.input])
            chunk, ready = self._chunk()
            if not chunk and not self.leaving:
                self.now = self.arrivals[0]
                continue
            if chunk:
                self._step(chunk, ready)
            else:
                self._coast()
            self._leave()
        return Waits(tuple(sorted(self.times)))

    def _chunk(self) -> tuple[float, list[float]]:
        """Prompt tokens of the next step, and the arrivals whose prompts are whole with it."""
        left = float(self.server.token_budget - len(self.leaving))
        room = self._room()
        chunk, ready = 0.0, []
        while self.prompts and left > 0 and room > 0:
            head = self.prompts[0]
            taken = min(head[1], left)
            head[1] -= taken
            chunk += taken
            left -= taken
            if head[1] > 0:
                break
            ready.append(self.prompts.popleft()[0])
            room -= 1
        return chunk, ready

    def _room(self) -> int:
        by_cache = int(self.server.cache_tokens / self.held) if self.held else 1 << 30
        return min(max(1, by_cache), self.server.max_sequences) - len(self.leaving)

    def _step(self, chunk: float, ready: list[float]) -> None:
        running = len(self.leaving)
        if running:
            self.now += self.decode(running) + self.work(chunk)
        else:
            self.now += prefill(self.place, chunk)
        self.steps += 1
        for arrival in ready:
            self.times.append(self.now - arrival + self.base)
            self.leaving.append(self.steps + max(0, int(self.load.output) - 1))

    def _coast(self) -> None:
        """Steps without a prompt: until the next one leaves or arrives."""
        step = self.decode(len(self.leaving))
        count = self.leaving[0] - self.steps
        if self.arrivals:
            count = min(count, 1 + int((self.arrivals[0] - self.now) / step))
        count = max(1, count)
        self.now += count * step
        self.steps += count

    def _leave(self) -> None:
        while self.leaving and self.leaving[0] <= self.steps:
            self.leaving.popleft()
            self._issue(self.now + self.think)


def simulate(place: Placement, load: Load, server: Server, *, start: str, waves: float = 3.0, think: float = 0.0) -> Waits:
    """`waves`: how many requests each client makes."""
    gap = 0.0
    if start == STEADY and load.concurrency > 1:
        found = steady(place, load, cache_tokens=server.cache_tokens, max_sequences=server.max_sequences)
        gap = load.output / found.throughput
    return _Run(place, load, server, int(max(1.0, waves) * load.concurrency), gap, think).run()


def first_token(place: Placement, prompt: float) -> float:
    """Of a request that finds the replica idle."""
    return prefill(place, prompt) + place.value("ttft_base_ms") / 1e3


def most_users(place: Placement, load: Load, server: Server, *, first: float, share: float, token: float, start: str) -> int:
    """The most clients for whom `share` of the first tokens come within `first` seconds and the median token within `token`."""
    low, high = 0, 1
    while high <= server.max_sequences and _meets(place, load, server, high, first, share, token, start):
        low, high = high, high * 2
    high = min(high, server.max_sequences + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _meets(place, load, server, middle, first, share, token, start) else (low, middle)
    return low


def _meets(place: Placement, load: Load, server: Server, users: int, first: float, share: float, token: float, start: str) -> bool:
    asked = msgspec.structs.replace(load, concurrency=float(users))
    if decode_step(place, users, load.input + load.output / 2.0) > token:
        return False
    return simulate(place, asked, server, start=start, waves=2.0).quantile(share) <= first


def ends(place: Placement, load: Load, server: Server) -> Iterator[Waits]:
    """The steady and the burst end."""
    yield simulate(place, load, server, start=STEADY)
    yield simulate(place, load, server, start=BURST)
