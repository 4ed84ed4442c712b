"""One replica in virtual time: continuous batching with chunked prefill, a key-value cache that fills, and what waits within.

Time moves from step to step. Steps in which nothing joins or leaves are taken together, and cut when a request arrives.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import ceil

import msgspec

from berth.deployments.simulate.speed import Speed


class Requests:
    """All requests of a run, by number: what each asks for, and when it got what. -1: not yet."""

    def __init__(self, arrival: list[float], prompt: list[int], output: list[int]) -> None:
        self.arrival, self.prompt, self.output = arrival, prompt, output
        self.sent = [-1.0] * len(arrival)
        self.first = [-1.0] * len(arrival)
        self.end = [-1.0] * len(arrival)

    def __len__(self) -> int:
        return len(self.arrival)


class Outcome(msgspec.Struct):
    """What a step brought. `began` got their first token in it, `ended` their last one."""

    began: list[int]
    ended: list[int]


class _Prompt:
    """A request whose prompt is to be worked on; one that was put back for lack of cache has tokens done already."""

    __slots__ = ("done", "number", "output", "size")

    def __init__(self, number: int, size: int, output: int) -> None:
        self.number, self.size, self.output, self.done = number, size, output, 0


class _Running:
    __slots__ = ("leaves", "number", "size")

    def __init__(self, number: int, leaves: int, size: int) -> None:
        self.number, self.leaves, self.size = (
            number,
            leaves,
            size,
        )  # `size`: tokens at the step it joined, less that step


class Engine:
    """`busy_until` is when the steps end that are being computed; None: nothing to do. Who drives it calls `finish` then."""

    def __init__(self, speed: Speed, requests: Requests) -> None:
        self.speed, self.requests = speed, requests
        self.busy_until: float | None = None
        self.waiting: deque[_Prompt] = deque()
        self._leaving: list[tuple[int, int]] = []  # a heap: step after which it leaves, number
        self._running: dict[int, _Running] = {}
        self._held = 0  # tokens of the running sequences, less the steps taken since each joined
        self._steps = self._count = 0
        self._start = self._step = 0.0
        self._ready: list[_Prompt] = []
        self._pure = False  # the current steps only decode, so they can be cut

    @property
    def load(self) -> int:
        return len(self._running) + len(self.waiting) + len(self._ready)

    @property
    def cache_use(self) -> float:
        return (self._held + len(self._running) * self._steps) / self.speed.cache_tokens

    def numbers(self) -> list[int]:
        """Requests that are here."""
        return [*self._running, *(each.number for each in self.waiting), *(each.number for each in self._ready)]

    def add(self, number: int, now: float) -> bool:
        """Takes a request. True: `busy_until` has changed."""
        requests = self.requests
        self.waiting.append(_Prompt(number, requests.prompt[number], requests.output[number]))
        if self.busy_until is None:
            self._begin(now)
            return True
        if self._pure and self._count > 1:
            count = max(1, ceil((now - self._start) / self._step))
            if count < self._count:
                self._count = count
                self.busy_until = self._start + count * self._step
                return True
        return False

    def finish(self) -> Outcome:
        """The steps are done; the next ones begin."""
        now = self.busy_until
        if now is None:
            return Outcome([], [])
        requests, running = self.requests, self._running
        self._steps += self._count
        steps = self._steps
        began: list[int] = []
        ended: list[int] = []
        for each in self._ready:
            number = each.number
            if requests.first[number] < 0:
                requests.first[number] = now + self.speed.first_second
                began.append(number)
            if each.output <= 1:
                requests.end[number] = now + self.speed.first_second
                ended.append(number)
                continue
            leaves = steps + each.output - 1
            size = each.size + 1 - steps
            running[number] = _Running(number, leaves, size)
            self._held += size
            heappush(self._leaving, (leaves, number))
        self._ready = []
        leaving = self._leaving
        while leaving and leaving[0][0] <= steps:
            leaves, number = heappop(leaving)
            found = running.get(number)
            if found is None or found.leaves != leaves:
                continue  # was put back meanwhile
            del running[number]
            self._held -= found.size
            requests.end[number] = now + self.speed.first_second
            ended.append(number)
        self._begin(now)
        return Outcome(began, ended)

    def _begin(self, now: float) -> None:
        speed = self.speed
        self._start = now
        running = len(self._running)
        if not running and not self.waiting:
            self.busy_until = None
            return
        used = self._held + running * self._steps
        if used + running > speed.cache_tokens and running > 1:
            self._put_back()
            running = len(self._running)
            used = self._held + running * self._steps
        work, alone = self._take(running, speed.cache_tokens - used) if self.waiting else (0.0, 0.0)
        decode = speed.decode[running] + speed.cache_second * used if running else 0.0
        if work:
            self._pure, self._count = False, 1
            step = decode + work
            self._step = step if step > alone else alone
        else:
            self._pure, self._step = True, decode
            count = self._leaving[0][0] - self._steps
            room = (speed.cache_tokens - used) // running
            self._count = max(1, min(count, room, 4_096))
            # The caches grow meanwhile, by one token of each sequence and step.
            self._step += speed.cache_second * running * (self._count - 1) / 2.0
        self.busy_until = now + self._count * self._step

    def _take(self, running: int, room: int) -> tuple[float, float]:
        """Prompt tokens of the next step: what they add to it, and how long they would take alone. (0, 0): none could be taken."""
        speed = self.speed
        left = speed.token_budget - running
        slots = speed.most_sequences - running
        work = 0.0
        while self.waiting and left > 0 and slots > 0:
            head = self.waiting[0]
            if head.size > room and (running or self._ready):
                break
            tokens = min(head.size - head.done, left)
            work += speed.work(tokens, head.done)
            head.done += tokens
            left -= tokens
            if head.done < head.size:
                break
            self.waiting.popleft()
            self._ready.append(head)
            room -= head.size
            slots -= 1
        if not work:
            return 0.0, 0.0
        return work, max(work, speed.prompt_least) + speed.prompt_fixed

    def _put_back(self) -> None:
        """The cache is full: the newest sequences start again when there is room."""
        while len(self._running) > 1:
            used = self._held + len(self._running) * self._steps
            if used + len(self._running) <= self.speed.cache_tokens:
                return
            number, found = self._running.popitem()
            size = found.size + self._steps
            self._held -= found.size
            self.waiting.appendleft(_Prompt(number, size, found.leaves - self._steps))
