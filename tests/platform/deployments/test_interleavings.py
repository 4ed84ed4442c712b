"""Two workers, stale leases, lost acts, crashes, rollouts: every interleaving that hypothesis can think of, in virtual time.

A look is taken apart into what the database and the provider see of it: claiming, observing, writing down (atomic, under the token),
and each act outside the database on its own. Any of them may come late, never, or between those of the other worker.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from berth.deployments.decision import SURGE, Action, Start
from berth.deployments.states import State
from berth.deployments.world import Sight, Want
from tests.platform.deployments.sim import MEMORY, Sim

WORKERS = st.integers(0, 1)
LEASE = 20.0


class Worker:
    """What one worker remembers between two of its steps, all of which may be out of date."""

    def __init__(self) -> None:
        self.token: int | None = None
        self.sights: dict[str, Sight] | None = None
        self.to_do: list[Action] = []
        self.checked: Action | None = None  # the lease was asked for, and the act is under way


class Interleavings(RuleBasedStateMachine):
    @initialize(replicas=st.integers(1, 3))
    def begin(self, replicas: int) -> None:
        self.sim = Sim(replicas)
        self.workers = [Worker(), Worker()]
        self.tokens = 0
        self.holder: int | None = None
        self.until = 0.0
        self.started: set[str] = set()
        self.most = replicas

    # --- one look, step by step

    @rule(number=WORKERS)
    def claim(self, number: int) -> None:
        if self.holder is None or self.sim.now > self.until:
            worker = self.workers[number]
            self.tokens += 1
            self.holder = worker.token = self.tokens
            self.until = self.sim.now + LEASE
            worker.sights, worker.to_do = None, []

    @rule(number=WORKERS)
    def observe(self, number: int) -> None:
        worker = self.workers[number]
        if worker.token is not None:
            worker.sights = dict(self.sim.sights)

    @rule(number=WORKERS)
    def write(self, number: int) -> None:
        worker = self.workers[number]
        if worker.sights is None or worker.token != self.holder:
            return
        before = len(self.sim.rows)
        decision = self.sim.look(sights=worker.sights, lose_actions=True)
        worker.to_do, worker.sights = list(decision.actions), None
        for action in decision.actions:
            if isinstance(action, Start) and action.new:
                assert action.name not in self.started, "a name is given once"
                self.started.add(action.name)
        assert len(self.sim.rows) <= max(before, self.sim.replicas + SURGE)

    @rule(number=WORKERS)
    def ask_for_the_lease(self, number: int) -> None:
        worker = self.workers[number]
        if worker.to_do and worker.checked is None and worker.token == self.holder and self.sim.now <= self.until:
            worker.checked = worker.to_do.pop(0)

    @rule(number=WORKERS)
    def act(self, number: int) -> None:
        """However long ago the lease was asked for: a process may stand still between the question and the act."""
        worker = self.workers[number]
        if worker.checked is not None:
            self.sim.do(worker.checked)
            worker.checked = None

    @rule(number=WORKERS)
    def let_go(self, number: int) -> None:
        worker = self.workers[number]
        if worker.token == self.holder and not worker.to_do:
            self.holder = worker.token = None

    @rule(number=WORKERS)
    def die(self, number: int) -> None:
        self.workers[number] = Worker()

    @rule(number=WORKERS, looks=st.integers(1, 4))
    def work(self, number: int, looks: int) -> None:
        """Undisturbed looks, as most are; what starts gets on meanwhile."""
        for _ in range(looks):
            self.claim(number)
            self.observe(number)
            self.write(number)
            for _ in list(self.workers[number].to_do):
                self.ask_for_the_lease(number)
                self.act(number)
            self.let_go(number)
            self.sim.progress()
            self.sim.now += 0.5

    # --- the world

    @rule(seconds=st.sampled_from([0.5, 2.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.sim.now += seconds

    @rule()
    def progress(self) -> None:
        self.sim.progress()

    @rule(number=st.integers(0, 5))
    def crash(self, number: int) -> None:
        self.sim.crash(number)

    @rule(replicas=st.integers(0, 3))
    def scale(self, replicas: int) -> None:
        self.sim.replicas = replicas
        self.most = max(self.most, replicas)

    @rule(beside=st.sampled_from(["", "canary", "shadow"]))
    def change(self, beside: str) -> None:
        self.sim.change(beside)

    @rule()
    def promote(self) -> None:
        self.sim.beside = ""

    @precondition(lambda self: self.sim.beside)
    @rule()
    def roll_back(self) -> None:
        self.sim.revision, self.sim.beside, self.sim.failures = self.sim.base, "", 0

    @rule(want=st.sampled_from([Want.RUNNING, Want.PAUSED]))
    def desire(self, want: Want) -> None:
        self.sim.desired, self.sim.failures = want, 0

    @rule(memory=st.integers(0, 8))
    def memory(self, memory: int) -> None:
        self.sim.memory = memory * MEMORY

    # --- what always holds

    @invariant()
    def within_bounds(self) -> None:
        if hasattr(self, "sim"):
            assert len(self.sim.rows) <= self.most + SURGE

    @invariant()
    def nobody_is_sent_to_what_is_not_ready(self) -> None:
        if hasattr(self, "sim"):
            for name in self.sim.serving():
                assert self.sim.sights[name].ready

    def teardown(self) -> None:
        """Whatever happened: left alone, with room, it becomes what is wanted."""
        if not hasattr(self, "sim"):
            return
        sim = self.sim
        sim.memory, sim.desired, sim.failures, sim.beside = 20 * MEMORY, Want.RUNNING, 0, ""
        for worker in self.workers:  # whoever stood still goes on, with what it meant to do long ago
            if worker.checked is not None:
                sim.do(worker.checked)
        sim.settle(120)
        assert sim.state is (State.READY if sim.replicas else State.ASLEEP)
        assert sorted(sim.rows) == sorted(sim.alive()) == sorted(sim.serving())
        assert sorted(row.ordinal for row in sim.rows.values()) == list(range(sim.replicas))
        assert {row.revision for row in sim.rows.values()} <= {sim.revision}


Interleavings.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestInterleavings: Any = Interleavings.TestCase


def test_during_a_canary_nobody_is_given_up_who_serves() -> None:
    """From any sizes and shares: the old serve until enough of the new do, and both together stay within the bounds."""
    for replicas in (1, 2, 3):
        sim = Sim(replicas)
        sim.settle(5)
        for beside in ("canary", "", "shadow", ""):
            sim.change(beside) if beside else setattr(sim, "beside", "")
            for _ in range(40):
                sim.look()
                assert len(sim.serving_callers()) >= replicas
                assert len(sim.alive()) <= replicas + SURGE
                sim.progress()
                sim.now += 0.5
        assert sim.state is State.READY
