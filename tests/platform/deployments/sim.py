"""A deployment in virtual time: what the reconciler does with rows and provider, on plain lists."""

from __future__ import annotations

import msgspec

from berth.deployments.decision import Action, Decision, Retire, Start, Stop
from berth.deployments.states import State, check_move
from berth.deployments.step import step
from berth.deployments.world import Base, Failure, Row, Sight, Want, Wanted, World, merge

MEMORY = 100


class Sim:
    """A deployment, its rows and its provider as plain lists. `look` does what reconcile.py does with rows and provider."""

    def __init__(self, replicas: int = 1, memory: int = 10 * MEMORY) -> None:
        self.now = 1_000_000.0
        self.memory = memory
        self.state = State.QUEUED
        self.revision = 1
        self.replicas = replicas
        self.desired = Want.RUNNING
        self.rows: dict[str, Row] = {}
        self.sights: dict[str, Sight] = {}
        self.attempts: dict[tuple[int, int], int] = {}
        self.failures = 0
        self.last: Failure | None = None
        self.broken = False  # every replica of the newest revision fails
        self.decision: Decision | None = None
        self.sleep_after: float | None = None
        self.state_since = self.now
        self.last_request_at: float | None = None
        self.woken_at: float | None = None
        self.base = 1  # revision that a canary or shadow stands beside
        self.beside = ""  # "canary", "shadow"

    def change(self, beside: str = "") -> None:
        """A new revision: at once, or beside the one before. What was beside before is no base."""
        self.base = self.base if self.beside else self.revision
        self.newest = max(getattr(self, "newest", 1), self.revision) + 1
        self.revision, self.failures, self.beside = self.newest, 0, beside

    def wanted(self) -> Wanted:
        if self.beside and self.replicas:
            shadow = self.beside == "shadow"
            old = Base(self.base, frozenset({self.base}), self.replicas, MEMORY)
            return msgspec.structs.replace(self.plain(), base=old, beside=1, shadow=shadow, comparing=self.beside)
        return self.plain()

    def plain(self) -> Wanted:
        return Wanted(
            "d",
            self.desired,
            self.revision,
            frozenset({self.revision}),
            self.replicas,
            MEMORY,
            sleep_after=self.sleep_after,
        )

    def look(self, *, lose_actions: bool = False, sights: dict[str, Sight] | None = None) -> Decision:
        """`sights`: what the provider showed a while ago."""
        shown = self.sights if sights is None else sights
        merged = merge(list(self.rows.values()), list(shown.values()), self.now)
        for ended in merged.ended:
            if ended.failed and ended.revision == self.revision:
                self.failures = 1 if ended.stable else self.failures + 1
                self.last = Failure(self.now, ended.reason, ended.message)
            del self.rows[ended.name]
        attempts = {ordinal: n for (revision, ordinal), n in self.attempts.items() if revision == self.revision}
        room = self.memory - MEMORY * len(self.rows)
        sleeping = self.state is State.ASLEEP and (self.woken_at is None or self.woken_at < self.state_since)
        world = World(
            self.now,
            self.state,
            merged,
            room,
            attempts,
            self.failures,
            self.last,
            self.decision.reason if self.decision else "",
            sleeping,
            self.last_request_at,
            self.woken_at,
            base_attempts={ordinal: n for (revision, ordinal), n in self.attempts.items() if revision == self.base},
        )
        decision = step(self.wanted(), world)
        assert step(self.wanted(), world) == decision
        check_move(self.state, decision.state)
        if decision.state is not self.state:
            self.state_since = self.now
        self.state, self.failures, self.decision = decision.state, decision.failures, decision
        self.write(decision)
        if not lose_actions:
            self.act(decision)
        return decision

    def write(self, decision: Decision) -> None:
        for action in decision.actions:
            if isinstance(action, Start) and action.new:
                assert action.name not in self.rows
                self.rows[action.name] = Row(action.name, action.revision, action.ordinal, MEMORY, self.now)
                self.attempts[action.revision, action.ordinal] = int(action.name.rpartition("-")[2])
            elif isinstance(action, Retire):
                self.rows[action.name] = msgspec.structs.replace(self.rows[action.name], retired_at=self.now)

    def act(self, decision: Decision) -> None:
        for action in decision.actions:
            self.do(action)

    def do(self, action: Action) -> None:
        if isinstance(action, Start):
            sight = self.sights.get(action.name)
            # The provider is only asked for a place that is still recorded (`reconcile._start`).
            if action.name in self.rows and (sight is None or not sight.alive):
                self.show(action.name, "loading")
        elif isinstance(action, Stop) and self.sights[action.name].alive:
            self.show(action.name, "stopped", alive=False)

    def serving_callers(self) -> list[str]:
        """Without those that only get copies."""
        new = f"d-{self.revision}-"
        return [name for name in self.serving() if self.beside != "shadow" or not name.startswith(new)]

    def show(self, name: str, phase: str, *, alive: bool = True, reason: str | None = None) -> None:
        self.sights[name] = Sight(name, phase, alive, alive and phase == "ready", self.now, reason)
        row = self.rows.get(name)
        if row and phase == "ready" and row.ready_at is None:
            self.rows[name] = msgspec.structs.replace(row, ready_at=self.now)

    def alive(self) -> list[str]:
        return [sight.name for sight in self.sights.values() if sight.alive]

    def serving(self) -> list[str]:
        """What gateways would send requests to."""
        return [
            name
            for name in self.alive()
            if self.sights[name].ready and name in self.rows and self.rows[name].retired_at is None
        ]

    def progress(self) -> None:
        """What starts gets ready, or fails if it is broken."""
        for sight in list(self.sights.values()):
            if not sight.alive:
                continue
            if sight.phase == "loading":
                broken = self.broken and sight.name.startswith(f"d-{self.revision}-")
                self.show(
                    sight.name,
                    "failed" if broken else "ready",
                    alive=not broken,
                    reason="engine_exited" if broken else None,
                )
            else:
                self.sights[sight.name] = msgspec.structs.replace(sight, updated_at=self.now)

    def crash(self, number: int) -> None:
        alive = self.alive()
        if alive:
            self.show(alive[number % len(alive)], "failed", alive=False, reason="agent_lost")

    def orphan(self) -> None:
        self.show(f"d-0-0-{int(self.now)}", "ready")

    def settle(self, seconds: float = 60.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.look()
            self.progress()
            self.now += 0.5
