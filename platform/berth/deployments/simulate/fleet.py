"""A deployment in virtual time: arrivals, a queue at the gateway, replicas that start, serve, fail and drain, and whoever scales them."""

from __future__ import annotations

import random
from collections import deque
from heapq import heappop, heappush

from berth.deployments.scaling.observation import Observation
from berth.deployments.simulate.replica import Engine, Outcome, Requests
from berth.deployments.simulate.routing import Routing
from berth.deployments.simulate.setting import Change, Order, Run, Scaler, Setting

_STEPS, _READY, _LOOK, _FAIL, _GIVE_UP = range(5)


class _Life:
    """A replica's engine and where it stands."""

    __slots__ = ("asked_at", "engine", "ready_at", "retired", "state", "turn")

    def __init__(self, engine: Engine, asked_at: float) -> None:
        self.engine, self.asked_at = engine, asked_at
        self.ready_at: float | None = None
        self.retired = False
        self.turn = 0  # an event of an older turn is void


class Fleet:
    """Runs one scaler over one set of requests."""

    def __init__(self, setting: Setting, requests: Requests, scaler: Scaler, routing: Routing) -> None:
        self.setting, self.requests, self.scaler, self.routing = setting, requests, scaler, routing
        self.chance = random.Random(setting.seed)  # noqa: S311 (a simulation, not a secret)
        self.now = requests.arrival[0] if len(requests) else 0.0
        self.lives: dict[int, _Life] = {}
        self.starting: list[int] = []
        self.ready: list[int] = []
        self.where: dict[int, int] = {}  # request -> replica
        self.queue: deque[int] = deque()
        self.queued: set[int] = set()
        self.events: list[tuple[float, int, int, int, int]] = []
        self.counter = self.next_name = 0
        self.order = Order(setting.initial)
        self.run_ = Run(requests, set())
        self.came = self.ended = self.answered = self.prompt_sum = self.output_sum = 0
        self.first_sum = self.queue_sum = self.decode_sum = 0.0
        self.decoded = self.late = 0

    def run(self) -> Run:
        arrivals = self.requests.arrival
        for _ in range(self.setting.initial):
            self._ready(self._start(cold=False))
        self._push(self.now, _LOOK, 0, 0)
        total, came, events = len(arrivals), 0, self.events
        first_look_past = arrivals[-1] if total else 0.0
        while came < total or self.where or self.queue:
            if came < total and (not events or arrivals[came] <= events[0][0]):
                self.now = arrivals[came]
                self.came += 1
                self._arrive(came)
                came += 1
                continue
            at, _, kind, name, turn = heappop(events)
            self.now = at
            if kind == _STEPS:
                life = self.lives.get(name)
                if life is not None and life.turn == turn:
                    self._steps(name, life)
            else:
                self._other(kind, name, turn, came >= total and at > first_look_past + 3_600.0)
        return self._finished()

    def _finished(self) -> Run:
        for name in list(self.lives):
            self._gone(name)
        run = self.run_
        run.span = self.now - (self.requests.arrival[0] if len(self.requests) else 0.0)
        return run

    def _other(self, kind: int, name: int, turn: int, over: bool) -> None:
        if kind == _LOOK:
            self._look(over)
        elif kind == _READY and name in self.lives and self.lives[name].turn == turn:
            self._ready(name)
        elif kind == _FAIL and name in self.lives:
            self._fail(name)
        elif kind == _GIVE_UP and name in self.queued:
            self._drop(name)

    def _push(self, at: float, kind: int, name: int, turn: int) -> None:
        self.counter += 1
        heappush(self.events, (at, self.counter, kind, name, turn))

    # Requests

    def _arrive(self, number: int) -> None:
        if not self.queue:
            name = self.routing.choose(self.now)
            if name is not None:
                self._send(number, name)
                return
        self.run_.held += 1
        self.queue.append(number)
        self.queued.add(number)
        if self.setting.patience is not None:
            self._push(self.now + self.setting.patience, _GIVE_UP, number, 0)

    def _send(self, number: int, name: int) -> None:
        self.routing.begin(name)
        self.where[number] = name
        requests = self.requests
        if requests.sent[number] < 0:
            self.queue_sum += self.now - requests.arrival[number]
        requests.sent[number] = self.now
        life = self.lives[name]
        if life.engine.add(number, self.now):
            self._next(name, life)

    def _next(self, name: int, life: _Life) -> None:
        life.turn += 1
        if life.engine.busy_until is not None:
            self._push(life.engine.busy_until, _STEPS, name, life.turn)

    def _steps(self, name: int, life: _Life) -> None:
        outcome = life.engine.finish()
        self._next(name, life)
        if outcome.began or outcome.ended:
            self._count(outcome)
        if outcome.ended:
            for number in outcome.ended:
                del self.where[number]
                self.routing.end(name)
            if life.retired:
                if life.engine.busy_until is None:
                    self._gone(name)
            elif self.queue:
                self._move_up()

    def _count(self, outcome: Outcome) -> None:
        requests = self.requests
        for number in outcome.began:
            self.answered += 1
            waited = requests.first[number] - requests.arrival[number]
            self.first_sum += waited
            self.late += waited > (self.setting.policy.goals.first_token_seconds or 1e9)
        for number in outcome.ended:
            self.ended += 1
            self.prompt_sum += requests.prompt[number]
            self.output_sum += requests.output[number]
            if requests.output[number] > 1:
                self.decode_sum += requests.end[number] - requests.first[number]
                self.decoded += requests.output[number] - 1

    def _move_up(self) -> None:
        while self.queue:
            number = self.queue[0]
            if number not in self.queued:
                self.queue.popleft()
                continue
            name = self.routing.choose(self.now)
            if name is None:
                return
            self.queue.popleft()
            self.queued.discard(number)
            self._send(number, name)

    def _drop(self, number: int) -> None:
        self.queued.discard(number)
        self.run_.dropped.add(number)
        while self.queue and self.queue[0] not in self.queued:
            self.queue.popleft()

    # Replicas

    def _start(self, cold: bool = True) -> int:
        setting, name = self.setting, self.next_name
        self.next_name += 1
        life = self.lives[name] = _Life(Engine(setting.speed, self.requests), self.now)
        if cold:
            spread = setting.cold_start_spread * (2.0 * self.chance.random() - 1.0)
            self.starting.append(name)
            self._push(self.now + setting.cold_start * (1.0 + spread), _READY, name, life.turn)
        return name

    def _ready(self, name: int) -> None:
        life = self.lives[name]
        life.ready_at = self.now
        if name in self.starting:
            self.starting.remove(name)
        self.ready.append(name)
        self._serve()
        if self.setting.failures_per_hour:
            self._push(self.now + self.chance.expovariate(self.setting.failures_per_hour / 3_600.0), _FAIL, name, 0)

    def _serve(self) -> None:
        self.routing.serve(self.ready, self.order.concurrency)
        if self.queue:
            self._move_up()

    def _retire(self, name: int) -> None:
        life = self.lives[name]
        life.retired = True
        self.ready.remove(name)
        self._serve()
        if life.engine.busy_until is None:
            self._gone(name)

    def _gone(self, name: int) -> None:
        life = self.lives.pop(name)
        if name in self.ready:
            self.ready.remove(name)
        self.run_.replica_seconds += self.now - life.asked_at
        if life.ready_at is not None:
            self.run_.ready_seconds += self.now - life.ready_at

    def _fail(self, name: int) -> None:
        life = self.lives[name]
        self.run_.failures += 1
        numbers = life.engine.numbers()
        self._gone(name)
        self.routing.failed(name, self.now)
        self._serve()
        for number in sorted(numbers, reverse=True):
            del self.where[number]
            self.routing.end(name)
            if self.requests.first[number] >= 0:  # its answer had begun: it ends with an error
                self.requests.first[number] = -1.0
                self.run_.dropped.add(number)
            else:
                self.queue.appendleft(number)
                self.queued.add(number)
        self._move_up()

    # Scaling

    def _look(self, over: bool) -> None:
        if over:
            return
        order = self.scaler.decide(self.observation())
        if order.desired != self.order.desired:
            self.run_.changes.append(Change(self.now, self.order.desired, order.desired))
        changed = order.concurrency != self.order.concurrency
        self.order = order
        self._follow(order.desired)
        if changed:
            self._serve()
        self._push(self.now + self.scaler.interval, _LOOK, 0, 0)

    def _follow(self, desired: int) -> None:
        """What starts still is ended before what serves; of what serves, the one with the least to do."""
        while len(self.starting) + len(self.ready) < desired:
            self._start()
        while len(self.starting) + len(self.ready) > desired and self.starting:
            self._gone(self.starting.pop())
        while len(self.ready) > desired:
            self._retire(min(self.ready, key=lambda name: (self.lives[name].engine.load, -name)))
        self.run_.most = max(self.run_.most, len(self.lives))

    def observation(self) -> Observation:
        setting = self.setting
        engines = [self.lives[name].engine for name in self.ready]
        return Observation(
            now=self.now,
            arrivals=float(self.came),
            ready=len(self.ready),
            starting=len(self.starting),
            in_flight=float(len(self.where)),
            queued=float(len(self.queued)),
            policy=setting.policy,
            capacity=setting.capacity,
            cold_start=setting.cold_start,
            answers=float(self.answered),
            first_token_seconds=self.first_sum,
            late=float(self.late),
            queue_seconds=self.queue_sum,
            ended=float(self.ended),
            prompt_tokens=float(self.prompt_sum),
            completion_tokens=float(self.output_sum),
            decode_seconds=self.decode_sum,
            decode_tokens=float(self.decoded),
            engine_queue=float(sum(len(engine.waiting) for engine in engines)),
            cache_use=sum(engine.cache_use for engine in engines) / len(engines) if engines else None,
        )
