"""A key in whose requests engines die one after the other is held, and told so; nobody else is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from berth_gateway.contract import Outcome, Replica
from berth_gateway.snapshot import Verdict
from berth_gateway.suspects import WINDOW, Suspects
from tests.gateway.core import Core, Wire, answers, whole_answer
from tests.gateway.harness import HEAD, World, chat, chat_events, chunked, raw_post


def test_strikes_are_counted_once_for_each_engine_and_end() -> None:
    suspects: Suspects[str] = Suspects()
    assert [suspects.died("k", "d", where, at) for where, at in (("a", 0), ("a", 1), ("b", 2))] == [1, 1, 2]
    assert suspects.held_for("k", "d", 2) == 0
    assert suspects.died("k", "d", "c", 100) == 3
    assert suspects.held_for("k", "d", 100) == WINDOW - 100
    assert suspects.held_for("other", "d", 100) == suspects.held_for("k", "other", 100) == 0
    assert suspects.held_for("k", "d", WINDOW) == 0


def test_an_engine_that_answers_again_has_not_died() -> None:
    suspects: Suspects[str] = Suspects()
    for where in "abc":
        suspects.died("k", "d", where, 0)
    suspects.answered("b")
    assert suspects.held_for("k", "d", 1) == 0
    assert suspects.died("k", "d", "e", 1) == 3


def restarted(core: Core, number: int) -> None:
    """The engine of the one route is back, with a secret of its own."""
    world = core.world.next()
    fresh = (Replica(f"r{number}", "127.0.0.1", 7001, f"secret-{number}"),)
    world.routes[0] = msgspec.structs.replace(world.routes[0], replicas=fresh)
    assert core.gateway.offer_snapshot(world.signed()) is Verdict.APPLIED


def crash(core: Core, *, answered: bool) -> Wire:
    _, wire = core.ask(stream=True)
    if answered:
        core.engine.send(HEAD + chunked(*chat_events(["a"])[:2]).removesuffix(b"0\r\n\r\n"))
    core.engine.upstream.lost()
    return wire


@pytest.mark.threat("G5")
@pytest.mark.parametrize("answered", [False, True])
def test_a_key_in_three_crashes_is_held_and_told(tmp_path: Path, answered: bool) -> None:
    world = World()
    world.keys.append(world.key("bth_sk_" + "c" * 43, world.org))
    world.route("acme/model", replicas=(Replica("r0", "127.0.0.1", 7001, "secret-0"),))
    core = Core(tmp_path, world)
    for number in range(3):
        crash(core, answered=answered)
        restarted(core, number + 1)
    assert [event.outcome for event in core.events] == [Outcome.UPSTREAM_ERROR] * 3
    _, wire = core.ask()
    got = answers(wire.out)[0]
    assert (got.status, got.code, got.headers["x-should-retry"]) == (403, "key_held", "false")
    assert "10 min" in got.error["message"]
    assert len(core.events) == 3, "it costs nothing"
    assert [line for line in core.log.written + core.log._lines if b'"key_held"' in line]
    client, other = core.client()
    client.received(raw_post("/v1/chat/completions", core.gateway.encode(chat()), "bth_sk_" + "c" * 43))
    core.engine.send(whole_answer(["a"]))
    assert answers(other.out)[0].status == 200, "another key of the same organisation goes on"
    core.pass_time(WINDOW)
    _, wire = core.ask()
    core.engine.send(whole_answer(["a"]))
    assert answers(wire.out)[0].status == 200
    core.close()


def test_an_engine_that_was_asked_to_end_is_no_crash(tmp_path: Path) -> None:
    world = World()
    world.route("acme/model", replicas=(Replica("r0", "127.0.0.1", 7001, "secret-0"),))
    core = Core(tmp_path, world)
    for number in range(4):
        core.ask(stream=True)
        running = core.engine
        restarted(core, number + 1)  # it left the route first
        running.upstream.lost()
    _, wire = core.ask()
    core.engine.send(whole_answer(["a"]))
    assert answers(wire.out)[0].status == 200
    core.close()
