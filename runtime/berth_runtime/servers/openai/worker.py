"""The thread that owns the model: sequences take turns, a token each, and join and leave between two turns."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from berth_runtime.servers.openai.asks import Ask, ChatBody, CompletionBody, read_ask
from berth_runtime.servers.openai.decoder import Decoder, Drawn, Generation, Refusal, SequenceFailed
from berth_runtime.servers.openai.stops import Stops

_FAILURES: Final = 4


@dataclass(frozen=True)
class Accepted:
    """The request is sound, and its turn has come."""

    ask: Ask


@dataclass(frozen=True)
class Piece:
    """Text that can be shown (possibly none), and the tokens drawn for it."""

    text: str
    drawn: tuple[Drawn, ...]
    produced: int


@dataclass(frozen=True)
class Ended:
    """Nothing more comes. `finish`: "stop" or "length"; else `refusal`, or neither: the engine failed."""

    produced: int
    finish: str | None = None
    refusal: Refusal | None = None


Report = Accepted | Piece | Ended


@dataclass
class Job:
    """One request on its way."""

    body: ChatBody | CompletionBody
    report: Callable[[Report], None]  # called from the worker's thread
    cancelled: bool = False
    arrived: float = field(default_factory=time.monotonic)


@dataclass
class Counters:
    """For /metrics. Written by the worker alone, but for `queued`."""

    running: int = 0
    queued: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    ttft_seconds: float = 0.0
    ttft_count: int = 0
    requests: dict[str, int] = field(
        default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "refused": 0, "failed": 0}
    )


class _Running:
    """A sequence with the text it has made so far."""

    def __init__(self, job: Job, ask: Ask, sequence: Generation, decoder: Decoder) -> None:
        self.job = job
        self.ask = ask
        self.sequence = sequence
        self.produced = 0
        self._text = decoder.text()
        self._stops = Stops(ask.stops)
        self._held: list[Drawn] = []  # tokens of which nothing could be shown yet

    def take(self, drawn: Drawn) -> str | None:
        """Reports the token; how the answer ended with it, if it did."""
        self.produced += 1
        finish = None
        if drawn.end:
            finish = "stop"
        else:
            self._held.append(drawn)
        text = "" if drawn.end else self._stops.push(self._text.push(drawn.token))
        if self._stops.found:
            finish = "stop"
        elif finish is None and self.produced >= self.ask.sampling.max_tokens:
            finish = "length"
        if finish and not self._stops.found:
            text += self._stops.push(self._text.finish())
            if not self._stops.found:
                text += self._stops.finish()
        if text or finish:
            held, self._held = tuple(self._held), []
            self.job.report(Piece(text, held, self.produced))
        return finish


class Worker:
    """`submit` and `cancel` may be called from any thread; reports come from the worker's."""

    QUEUE: Final = 256  # requests that may wait

    def __init__(self, decoder: Decoder, slots: int, fatal: Callable[[], None], queue: int = QUEUE) -> None:
        """`fatal` is called when the library fails in a way after which nothing can be trusted."""
        self.counters = Counters()
        self._decoder = decoder
        self._slots = slots
        self._fatal = fatal
        self._queue = queue
        self._waiting: deque[Job] = deque()
        self._running: list[_Running] = []
        self._failures = 0  # since a step last went well
        self._changed = threading.Condition()

    def submit(self, job: Job) -> bool:
        """False if too many wait already."""
        with self._changed:
            if len(self._waiting) >= self._queue:
                return False
            self._waiting.append(job)
            self.counters.queued = len(self._waiting)
            self._changed.notify()
        return True

    def cancel(self, job: Job) -> None:
        """Its client has left: nothing more is computed for it."""
        with self._changed:
            job.cancelled = True
            with suppress(ValueError):
                self._waiting.remove(job)
                self.counters.requests["abort"] += 1
            self.counters.queued = len(self._waiting)
            self._changed.notify()

    def run(self) -> None:
        """Works for ever; call it in a thread of its own."""
        try:
            while True:
                self._admit()
                self._turn()
        except Exception:  # noqa: BLE001 - whatever the library throws: it holds text of requests, so it is not shown
            for running in self._running:
                running.job.report(Ended(running.produced))
            self._fatal()

    def _admit(self) -> None:
        """Takes what waits while there is room; sleeps while there is nothing to do."""
        while True:
            with self._changed:
                while not self._running and not self._waiting:
                    self._changed.wait()
                if not self._waiting or len(self._running) >= self._slots:
                    return
                job = self._waiting.popleft()
                self.counters.queued = len(self._waiting)
                self.counters.running += 1
            self._begin(job)

    def _begin(self, job: Job) -> None:
        try:
            ask = read_ask(job.body, self._decoder)
            sequence = self._decoder.start(ask.prompt, ask.sampling)
        except Refusal as raised:
            self.counters.running -= 1
            self.counters.requests["refused"] += 1
            job.report(Ended(0, refusal=raised))
            return
        self.counters.prompt_tokens += len(ask.prompt)
        job.report(Accepted(ask))
        self._running.append(_Running(job, ask, sequence, self._decoder))

    def _turn(self) -> None:
        """A token for each."""
        for running in list(self._running):
            if running.job.cancelled:
                self._leave(running, "abort")
                continue
            try:
                drawn = running.sequence.step()
            except SequenceFailed:
                self._fail(running)
                continue
            self._failures = 0
            self.counters.steps += 1
            if drawn is None:
                continue
            self.counters.completion_tokens += 1
            if running.produced == 0:
                self.counters.ttft_seconds += time.monotonic() - running.job.arrived
                self.counters.ttft_count += 1
            finish = running.take(drawn)
            if finish:
                self._leave(running, finish)
                running.job.report(Ended(running.produced, finish))

    def _fail(self, running: _Running) -> None:
        self._leave(running, "failed")
        running.job.report(Ended(running.produced))
        self._failures += 1
        if self._failures >= _FAILURES:
            raise RuntimeError("one sequence after the other fails")

    def _leave(self, running: _Running, how: str) -> None:
        self._running.remove(running)
        self.counters.running -= 1
        self.counters.requests[how] += 1
        running.sequence.close()
