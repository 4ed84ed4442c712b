"""Whatever comes in whatever order: no replica is overfilled, nobody is forgotten, and at the end nothing is left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from berth_gateway.client import Client
from berth_gateway.contract import Replica, RouteState
from berth_gateway.snapshot import Verdict
from tests.gateway.core import Core, Wire, whole_answer
from tests.gateway.harness import SECRET, World, chat, plain, raw_post

KEYS = ["bth_sk_" + letter * 43 for letter in "xyz"]
ACTS = [
    "ask",
    "ask",
    "ask",
    "stream",
    "finish",
    "finish",
    "fail",
    "break",
    "leave",
    "wait",
    "replicas",
    "asleep",
    "loading",
]
acts = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 50)), max_size=40)


class Story:
    """A gateway, its clients, and engines that answer when they are told to."""

    def __init__(self, folder: Path) -> None:
        world = World()
        world.keys += [world.key(token, world.org) for token in KEYS]
        world.route("acme/model", replicas=self.replicas(1))
        self.core = Core(folder, world, BERTH_GATEWAY_QUEUE_LENGTH="5", BERTH_GATEWAY_QUEUE_SECONDS="20")
        self.clients: list[tuple[Client, Wire]] = []
        self.left: set[int] = set()
        self.answered: dict[int, int] = {}

    @staticmethod
    def replicas(choice: int) -> tuple[Replica, ...]:
        return tuple(Replica(f"r{n}", "127.0.0.1", 7000 + n, SECRET, 1 + n % 2) for n in range(4) if choice >> n & 1)

    def busy(self) -> list[int]:
        """Connections on which a request waits for its answer."""
        out = []
        for number, dialled in enumerate(self.core.dialled):
            if dialled.wire.open and len(dialled.requests) > self.answered.get(number, 0):
                out.append(number)
        return out

    def act(self, what: str, number: int) -> None:
        core = self.core
        if what in ("ask", "stream"):
            client, wire = core.client()
            body = core.gateway.encode(chat(stream=what == "stream", user=f"u{number % 5}"))
            client.received(raw_post("/v1/chat/completions", body, KEYS[number % 3]))
            self.clients.append((client, wire))
        elif what in ("finish", "fail", "break"):
            busy = self.busy()
            if busy:
                self.answer(busy[number % len(busy)], what)
        elif what == "leave" and self.clients:
            self.left.add(number % len(self.clients))
            self.clients[number % len(self.clients)][0].lost()
        elif what == "wait":
            core.pass_time(number / 4)
        elif what == "replicas":
            self.publish(RouteState.READY, self.replicas(1 + number % 15))
        elif what in ("asleep", "loading"):
            self.publish(RouteState(what), ())

    def answer(self, number: int, how: str) -> None:
        self.answered[number] = self.answered.get(number, 0) + 1
        dialled = self.core.dialled[number]
        if how == "break":
            dialled.wire.closed = True
            dialled.upstream.lost()
        else:
            dialled.send(whole_answer(["a"]) if how == "finish" else plain(500, b"{}"))

    def publish(self, state: RouteState, replicas: tuple[Replica, ...]) -> None:
        world = self.core.world.next()
        sleep = world.version if state is RouteState.ASLEEP else None
        world.routes[0] = msgspec.structs.replace(
            world.routes[0], state=state, replicas=replicas, asleep_since=sleep, hold_seconds=30
        )
        assert self.core.gateway.offer_snapshot(world.signed()) is Verdict.APPLIED

    def check(self) -> None:
        gateway = self.core.gateway
        in_flight = gateway.router.in_flight()
        waiting = gateway.places.all_waiting()
        assert in_flight + waiting == len(gateway.exchanges), "each request has exactly one place"
        for each in self.replicas(15):
            assert gateway.router.load(each) <= (each.slots or 0)
        deployment = self.core.world.routes[0].deployment_id
        assert gateway.loads.in_flight().get(deployment, 0) == in_flight
        assert waiting <= 5
        route = self.core.world.routes[0]
        second = any(place.tried for room in gateway.places.rooms.values() for place in room.places)
        if waiting and route.state is RouteState.READY and not second:
            assert gateway.router.choose(route, (), gateway.now()) is None, "nobody waits while there is room"

    def end(self) -> None:
        """A replica serves whatever still waits, or it is told that it waited too long."""
        self.publish(RouteState.READY, self.replicas(15))
        for _ in range(200):
            busy = self.busy()
            if not busy:
                break
            self.answer(busy[0], "finish")
        self.core.pass_time(40)
        gateway = self.core.gateway
        assert (gateway.router.in_flight(), gateway.places.all_waiting(), len(gateway.exchanges)) == (0, 0, 0)
        assert gateway.places.rooms == {}
        assert gateway.places._bytes == 0
        for number, (_, wire) in enumerate(self.clients):
            if number not in self.left:
                assert wire.out.count(b"HTTP/1.1 ") == 1, "everybody who stayed has one answer"


@settings(max_examples=120, deadline=None)
@given(acts)
@example([("ask", 0), ("ask", 0), ("fail", 0), ("wait", 21)])  # the next request has the connection of one that failed
def test_any_order_of_events_leaves_nobody_behind(history: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder))
        try:
            for what, number in history:
                story.act(what, number)
                story.check()
            story.end()
        finally:
            story.core.close()
