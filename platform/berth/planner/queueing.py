"""What requests wait for: a small deterministic simulation of continuous batching with chunked prefill.

Seconds. Equal requests from clients that each wait for their answer (and think) before they ask again. A step decodes one token for
every running sequence and works on as many prompt tokens as the token budget leaves. Two starts bound what happens in practice: all clients
at once (burst), or spread evenly over one answer's time (steady).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from heapq import heappop, heappush
from typing import Final

import msgspec

from berth.planner.placement import Placement
from berth.planner.serving import Load, steady, token_weight
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
        load = Load(max(1.0, load.input), max(1.0, load.output), max(1.0, load.concurrency))
        self.place, self.load, self.server, self.think = place, load, server, think
        self.context = load.input + load.output / 2.0
        self.weight = token_weight(
            place, load.input + load.output / 2.0
        )  # layers with a window keep less than all tokens
        self.reserved = load.input + load.output if place.value("reserves_output") else load.input
        self.now, self.steps, self.issued, self.requests = 0.0, 0, 0, requests
        self.arrivals: list[float] = []  # a heap: answers come in any order between clients' first requests
        self.prompts: deque[list[float]] = (
            deque()
        )  # [arrival or -1 when its first token is out, tokens left, tokens to generate, prompt]
        self.leaving: deque[int] = deque()  # the step after which each running sequence ends
        self.sizes: deque[float] = deque()  # tokens that each had when it joined, less the step in which it did
        self.times: list[float] = []
        for client in range(int(load.concurrency)):
            self._issue(client * gap)
        self.decode = lru_cache(maxsize=None)(lambda batch: decode_step(place, batch, self.context))
        self.work = lru_cache(maxsize=None)(lambda tokens: prefill_work(place, tokens))
        self.base = place.value("ttft_base_ms") / 1e3

    def _issue(self, at: float) -> None:
        if self.issued < self.requests:
            self.issued += 1
            heappush(self.arrivals, at)

    def run(self) -> Waits:
        while len(self.times) < self.requests:
            while self.arrivals and self.arrivals[0] <= self.now + 1e-12:
                self.prompts.append([heappop(self.arrivals), self.load.input, self.load.output, self.load.input])
            self._evict()
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

    def _cached(self) -> float:
        """Tokens of the cache in use."""
        if self.place.value("reserves_output"):
            return len(self.leaving) * self.reserved * self.weight
        return (sum(self.sizes) + len(self.sizes) * self.steps) * self.weight

    def _evict(self) -> None:
        """When the cache overflows, the newest sequence starts again later; its first token is out already."""
        while (
            len(self.leaving) > 1
            and not self.place.value("reserves_output")
            and self._cached() > self.server.cache_tokens
        ):
            left, size = self.leaving.pop() - self.steps, self.sizes.pop() + self.steps
            self.prompts.appendleft([-1.0, size, float(left), size])

    def _chunk(self) -> tuple[float, list[list[float]]]:
        """Prompt tokens of the next step, and the prompts that are whole with it."""
        left = float(self.server.token_budget - len(self.leaving))
        room = self.server.cache_tokens - self._cached()
        slots = self.server.max_sequences - len(self.leaving)
        chunk, ready = 0.0, list[list[float]]()
        while self.prompts and left > 0 and slots > 0:
            head = self.prompts[0]
            needed = max(head[3], self.reserved) * self.weight
            if needed > room and (self.leaving or ready):
                break
            taken = min(head[1], left)
            head[1] -= taken
            chunk += taken
            left -= taken
            if head[1] > 0:
                break
            ready.append(self.prompts.popleft())
            room -= needed
            slots -= 1
        return chunk, ready

    def _step(self, chunk: float, ready: list[list[float]]) -> None:
        running, alone = len(self.leaving), prefill(self.place, chunk)
        # With sequences that decode anyway a prompt adds its arithmetic; but no step is shorter than the prompt's own.
        self.now += max(alone, self.decode(running) + self.work(chunk)) if running else alone
        self.steps += 1
        for arrival, _, output, prompt in ready:
            if arrival >= 0:
                self.times.append(self.now - arrival + self.base)
            self.leaving.append(self.steps + max(0, int(output) - 1))
            self.sizes.append(prompt - self.steps)

    def _coast(self) -> None:
        """Steps without a prompt: until the next one leaves or arrives, or the cache is full."""
        step = self.decode(len(self.leaving))
        count = self.leaving[0] - self.steps
        if self.arrivals:
            count = min(count, 1 + int((self.arrivals[0] - self.now) / step))
        if not self.place.value("reserves_output"):
            spare = (self.server.cache_tokens - self._cached()) / (self.weight * len(self.leaving))
            count = min(count, 1 + int(max(0.0, spare)))
        count = max(1, count)
        self.now += count * step
        self.steps += count

    def _leave(self) -> None:
        while self.leaving and self.leaving[0] <= self.steps:
            self.leaving.popleft()
            self.sizes.popleft()
            self._issue(self.now + self.think)


def simulate(
    place: Placement, load: Load, server: Server, *, start: str, waves: float = 3.0, think: float = 0.0
) -> Waits:
    """`waves`: how many requests each client makes."""
    gap = 0.0
    if start == STEADY and load.concurrency > 1:
        found = steady(place, load, cache_tokens=server.cache_tokens, max_sequences=server.max_sequences)
        gap = load.output / found.throughput
    return _Run(place, load, server, int(max(1.0, waves) * max(1.0, load.concurrency)), gap, think).run()


def first_token(place: Placement, prompt: float) -> float:
    """Of a request that finds the replica idle."""
    return prefill(place, prompt) + place.value("ttft_base_ms") / 1e3


def most_users(
    place: Placement, load: Load, server: Server, *, first: float, share: float, token: float, start: str
) -> int:
    """The most clients for whom `share` of the first tokens come within `first` seconds and the median token within `token`."""
    low, high = 0, 1
    while high <= server.max_sequences and _meets(place, load, server, high, first, share, token, start):
        low, high = high, high * 2
    high = min(high, server.max_sequences + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _meets(place, load, server, middle, first, share, token, start) else (low, middle)
    return low


def _meets(
    place: Placement, load: Load, server: Server, users: int, first: float, share: float, token: float, start: str
) -> bool:
    asked = msgspec.structs.replace(load, concurrency=float(users))
    if decode_step(place, users, load.input + load.output / 2.0) > token:
        return False
    return simulate(place, asked, server, start=start, waves=2.0).quantile(share) <= first


def ends(place: Placement, load: Load, server: Server) -> Iterator[Waits]:
    """The steady and the burst end."""
    yield simulate(place, load, server, start=STEADY)
    yield simulate(place, load, server, start=BURST)
