"""Waiting for a replica: bounds, order, release, cold start, retries, shadows; the gateway's core with a clock of the test's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berth_gateway.client import Client
from berth_gateway.contract import (
    DeploymentLoad,
    Outcome,
    Replica,
    Route,
    RouteState,
    Shadow,
    UsageEvent,
)
from berth_gateway.snapshot import Verdict
from tests.gateway.core import Core, Wire, answers, whole_answer
from tests.gateway.harness import SECRET, World, chat, plain, raw_post


def replica(port: int, slots: int | None = 1, revision: int | None = None) -> Replica:
    return Replica(f"r{port}", "127.0.0.1", port, SECRET, slots, revision)


def core_with(tmp_path: Path, *replicas: Replica, settings: dict[str, str] | None = None, **fields: Any) -> Core:
    world = World()
    world.route("acme/model", replicas=replicas, **fields)
    return Core(tmp_path, world, **(settings or {}))


def publish(core: Core, **fields: Any) -> Route:
    """The one route as it is from now on."""
    world = core.world.next()
    world.routes[0] = msgspec.structs.replace(world.routes[0], **fields)
    assert core.gateway.offer_snapshot(world.signed()) is Verdict.APPLIED
    return world.routes[0]


def ask(core: Core, more: str = "", token: str | None = None, **fields: Any) -> tuple[Client, Wire]:
    client, wire = core.client()
    body = core.gateway.encode(chat(**fields))
    client.received(raw_post("/v1/chat/completions", body, token or core.world.token, more))
    return client, wire


def finish(core: Core, number: int) -> None:
    core.dialled[number].send(whole_answer(["a", "b"]))


def statuses(*wires: Wire) -> list[int | None]:
    return [int(wire.out.split(b" ", 2)[1]) if wire.out else None for wire in wires]


def test_a_full_replica_gets_no_more_and_who_waits_is_served_in_turn(tmp_path: Path) -> None:
    core = core_with(tmp_path, replica(7001, slots=2))
    wires = [ask(core)[1] for _ in range(5)]
    assert len(core.asked) == 2
    assert core.gateway.places.all_waiting() == 3
    for number in range(5):
        assert len(core.asked) == min(5, number + 2)
        finish(core, number) if number < len(core.dialled) else core.dialled[-1].send(whole_answer(["a"]))
    assert len(core.asked) == 5
    for dialled in core.dialled:
        if not all(wire.out for wire in wires):
            dialled.send(whole_answer(["a"]))
    assert statuses(*wires) == [200] * 5
    assert core.gateway.router.in_flight() == core.gateway.places.all_waiting() == 0
    assert [event.outcome for event in core.events] == [Outcome.OK] * 5
    core.close()


def test_a_queue_has_an_end_and_a_request_beyond_it_costs_nothing(tmp_path: Path) -> None:
    core = core_with(tmp_path, replica(7001), settings={"BERTH_GATEWAY_QUEUE_LENGTH": "2"})
    wires = [ask(core)[1] for _ in range(4)]
    assert statuses(*wires) == [None, None, None, 503]
    refused = answers(wires[3].out)[0]
    assert (refused.code, refused.headers["retry-after"]) == ("overloaded", "2")
    assert core.events == [], "it was never accepted"
    assert len(core.gateway.exchanges) == 3
    core.close()


def test_waiting_has_an_end_and_says_so(tmp_path: Path) -> None:
    core = core_with(tmp_path, replica(7001), settings={"BERTH_GATEWAY_QUEUE_SECONDS": "10"})
    _, first = ask(core)
    _, second = ask(core)
    core.pass_time(9)
    assert statuses(first, second) == [None, None]
    core.pass_time(2)
    assert statuses(first, second) == [None, 503]
    assert answers(second.out)[0].code == "overloaded"
    assert "retry-after" in answers(second.out)[0].headers
    assert core.events == []  # no engine has seen it, so it was never accepted
    finish(core, 0)
    assert len(core.asked) == 1, "who gave up is not sent after all"
    core.close()


def test_who_leaves_gives_up_its_position(tmp_path: Path) -> None:
    core = core_with(tmp_path, replica(7001))
    ask(core)
    leaving, _ = ask(core, max_tokens=3)
    _, last = ask(core, max_tokens=4)
    leaving.lost()
    assert core.gateway.places.all_waiting() == 1
    finish(core, 0)
    assert [seen.json["max_tokens"] for seen in core.asked][1:] == [4]
    core.engine.send(whole_answer(["a"]))
    assert statuses(last) == [200]
    assert Outcome.CLIENT_CLOSED not in [event.outcome for event in core.events]
    assert core.gateway.loads.in_flight()[core.world.routes[0].deployment_id] == 0
    core.close()


def test_a_key_with_one_request_does_not_wait_behind_one_with_many(tmp_path: Path) -> None:
    world = World()
    quiet = "bth_sk_" + "q" * 43
    world.keys.append(world.key(quiet, world.org))
    world.route("acme/model", replicas=(replica(7001),))
    core = Core(tmp_path, world)
    many = [ask(core)[1] for _ in range(20)]
    _, one = ask(core, token=quiet)
    answered: Counter[int] = Counter()
    for _ in range(4):
        busy = next(n for n, dialled in enumerate(core.dialled) if len(dialled.requests) > answered[n])
        answered[busy] += 1
        finish(core, busy)
    assert statuses(one) == [200]
    assert statuses(*many).count(200) <= 3
    core.close()


def test_a_stream_that_waits_stays_open(tmp_path: Path) -> None:
    core = core_with(tmp_path, replica(7001))
    ask(core)
    _, wire = ask(core, stream=True)
    core.pass_time(16)
    assert wire.out.endswith(b": keep-alive\n\n\r\n")
    finish(core, 0)
    core.engine.send(whole_answer(["a"]))
    assert answers(wire.out)[0].events[-1] == "[DONE]"
    core.close()


@pytest.mark.parametrize("state", [RouteState.ASLEEP, RouteState.LOADING])
def test_a_request_is_held_until_its_deployment_is_ready(tmp_path: Path, state: RouteState) -> None:
    core = core_with(tmp_path, state=state, asleep_since=5 if state is RouteState.ASLEEP else None)
    told: list[int] = []
    core.gateway.places.on_wake = lambda: told.append(1)
    wires = [ask(core, stream=False)[1], ask(core, stream=True)[1]]
    wakes = core.gateway.places.wakes()
    assert [(w.deployment_id, w.sleep) for w in wakes] == (
        [(core.world.routes[0].deployment_id, 5)] if state is RouteState.ASLEEP else []
    )
    assert len(told) == len(wakes), "two requests are one wish"
    core.pass_time(20)
    assert statuses(*wires) == [None, 200]
    publish(core, state=RouteState.LOADING, asleep_since=None)
    assert core.gateway.places.wakes() == []
    core.pass_time(200)
    publish(core, state=RouteState.READY, replicas=(replica(7001, slots=4),))
    assert len(core.asked) == 2
    for dialled in core.dialled:
        dialled.send(whole_answer(["a"]))
    assert statuses(*wires) == [200, 200]
    assert answers(wires[1].out)[0].events[-1] == "[DONE]"
    assert [event.outcome for event in core.events] == [Outcome.OK] * 2
    core.close()


@pytest.mark.parametrize(
    ("hold", "read_timeout", "until"), [(300, None, 300), (60, "600", 60), (300, "45", 40), (300, "45.5", 40.5)]
)
def test_holding_ends_before_the_client_gives_up(
    tmp_path: Path, hold: int, read_timeout: str | None, until: float
) -> None:
    core = core_with(tmp_path, state=RouteState.ASLEEP, asleep_since=5, hold_seconds=hold, ready_in_seconds=25)
    _, wire = ask(core, "" if read_timeout is None else f"x-stainless-read-timeout: {read_timeout}\r\n")
    core.pass_time(until - 1)
    assert statuses(wire) == [None]
    core.pass_time(1.5)
    got = answers(wire.out)[0]
    assert (got.status, got.code, got.error["param"], got.headers["retry-after"]) == (
        503,
        "model_loading",
        "model",
        "25",
    )
    assert got.headers["x-should-retry"] == "true"
    core.close()


@pytest.mark.parametrize("how", [{"hold_seconds": 0}, {"read_timeout": "4"}])
def test_who_cannot_wait_is_told_at_once_and_still_wakes_it(tmp_path: Path, how: dict[str, Any]) -> None:
    timeout = how.pop("read_timeout", None)
    core = core_with(tmp_path, state=RouteState.ASLEEP, asleep_since=5, **how)
    _, wire = ask(core, "" if timeout is None else f"x-stainless-read-timeout: {timeout}\r\n")
    assert answers(wire.out)[0].code == "model_loading"
    assert len(core.gateway.places.wakes()) == 1
    assert core.events == []
    core.close()


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [(RouteState.PAUSED, 403, "deployment_paused"), (RouteState.UNAVAILABLE, 503, "overloaded")],
)
def test_who_waits_in_vain_is_told_why(tmp_path: Path, state: RouteState, status: int, code: str) -> None:
    core = core_with(tmp_path, state=RouteState.LOADING)
    _, wire = ask(core)
    publish(core, state=state)
    got = answers(wire.out)[0]
    assert (got.status, got.code) == (status, code)
    core.close()


def test_after_a_cold_start_the_queue_begins_anew(tmp_path: Path) -> None:
    core = core_with(tmp_path, state=RouteState.LOADING, settings={"BERTH_GATEWAY_QUEUE_SECONDS": "10"})
    wires = [ask(core)[1] for _ in range(2)]
    core.pass_time(100)
    publish(core, state=RouteState.READY, replicas=(replica(7001),))
    core.pass_time(8)
    assert statuses(*wires) == [None, None]
    core.pass_time(3)
    assert statuses(*wires) == [None, 503]
    core.close()


def test_a_failed_replica_rests_and_comes_back_by_one_trial(tmp_path: Path) -> None:
    core = core_with(tmp_path, replica(7001, None), replica(7002, None))
    _, wire = ask(core)
    bad = core.dialled[0].upstream.where
    core.dialled[0].send(plain(500, b'{"error":{}}'))
    assert statuses(wire) == [503]
    for number in range(1, 4):
        ask(core)
        assert core.dialled[number].upstream.where != bad, "it left at its first failure"
    core.pass_time(1.1)
    load = core.gateway.router.load
    ill = next(r for r in core.world.routes[0].replicas if r.port == bad[1])
    for _ in range(4):
        ask(core)
    assert load(ill) == 1, "one trial, until it is answered"
    trial = core.dialled[0] if len(core.dialled[0].requests) == 2 else core.dialled[-1]
    trial.send(whole_answer(["a"]))
    for _ in range(4):
        ask(core)
    assert load(ill) >= 3
    core.close()


def test_a_second_try_goes_elsewhere_even_if_it_has_to_wait(tmp_path: Path) -> None:
    core = core_with(tmp_path, replica(7001), replica(7002))
    wires = [ask(core)[1], ask(core)[1]]
    core.dialled[0].upstream.lost()  # before any byte
    assert statuses(*wires) == [None, None]
    assert len(core.asked) == 2
    finish(core, 1)
    assert len(core.asked) == 3
    core.dialled[-1].send(whole_answer(["a"]))
    assert statuses(*wires) == [200, 200]
    core.close()


def test_the_event_names_the_revision_that_answered(tmp_path: Path) -> None:
    core = core_with(tmp_path, replica(7001, revision=3), revision=4)
    ask(core)
    finish(core, 0)
    assert [event.revision for event in core.events] == [3]
    core.close()


def test_conversations_stay_where_their_beginning_is_cached(tmp_path: Path) -> None:
    core = core_with(tmp_path, *(replica(7000 + n, None) for n in range(1, 5)))
    chosen: dict[str, set[int]] = {}
    for turn in range(3):
        for talk in "abcdefgh":
            first = {"role": "user", "content": f"{talk} says hello"}
            later = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}] * turn
            _, wire = ask(core, messages=[first, *later])
            busy = next(d for d in core.dialled if core.gateway.router.load(replica(d.upstream.where[1], None)))
            chosen.setdefault(talk, set()).add(busy.upstream.where[1])
            busy.send(whole_answer(["a"]))
            assert statuses(wire) == [200]
    assert all(len(ports) == 1 for ports in chosen.values()), "each talk keeps its replica"
    assert len(set.union(*chosen.values())) > 1, "talks are spread"
    core.close()


def test_shadows_get_copies_and_change_nothing(tmp_path: Path) -> None:
    core = core_with(tmp_path, replica(7001, None), shadow=Shadow((replica(7009, None),), 50))
    wires = [ask(core)[1] for _ in range(4)]
    copies = [dialled for dialled in core.dialled if dialled.upstream.where[1] == 7009]
    others = [dialled for dialled in core.dialled if dialled.upstream.where[1] == 7001]
    assert (len(copies), len(others)) == (2, 4)
    assert copies[0].requests[0].body == others[0].requests[0].body
    copies[0].send(whole_answer(["never", "billed"]))
    copies[1].upstream.lost()
    for dialled in others:
        dialled.send(whole_answer(["a"]))
    assert statuses(*wires) == [200] * 4
    assert len(core.events) == 4
    assert sum(event.completion_tokens for event in core.events) == 4
    shadows, deployment = core.gateway.telemetry.shadows, core.world.routes[0].deployment_id
    assert (shadows.value(deployment, "ok"), shadows.value(deployment, "failed")) == (1, 1)
    assert core.gateway.router.in_flight() == 0
    core.close()


def test_shadows_are_bounded_in_number_and_time(tmp_path: Path) -> None:
    core = core_with(tmp_path, replica(7001, None), shadow=Shadow((replica(7009, None),), 100))
    for _ in range(20):
        ask(core)
    assert len(core.gateway.shadows.running) == 16
    core.pass_time(121)
    assert core.gateway.shadows.running == set()
    core.close()


def loads(core: Core) -> dict[str, DeploymentLoad]:
    changed, _ = core.gateway.loads.take()
    return {name: msgspec.msgpack.decode(packed, type=DeploymentLoad) for name, packed in changed.items()}


def test_load_tells_what_runs_waits_and_was_done(tmp_path: Path) -> None:
    core = core_with(tmp_path, replica(7001))
    deployment = core.world.routes[0].deployment_id
    for _ in range(3):
        ask(core)
    now = loads(core)[deployment]
    assert (now.arrivals, now.in_flight, now.queued, now.answers) == (3, 1, 2, 0)
    core.clock += 2
    finish(core, 0)
    core.clock += 5
    later = loads(core)[deployment]
    assert (later.arrivals, later.in_flight, later.queued, later.answers) == (3, 1, 1, 1)
    assert (later.completion_tokens, later.first_token_seconds, later.queue_seconds) == (2, 2.0, 2.0)
    assert later.active_at == later.at, "something runs"
    for dialled in core.dialled:
        dialled.send(whole_answer(["a"]))
        dialled.send(whole_answer(["a"]))
    core.clock += 5
    loads(core)
    assert loads(core) == {}, "nothing changes, so nothing is written"
    publish(core, name="acme/other", deployment_id="another")
    assert core.gateway.loads.take() == ({}, [deployment])
    core.close()


def event_of(core: Core) -> UsageEvent:
    ask(core)
    core.engine.send(whole_answer(["a", "b", "c"]))
    return core.events[-1]


def test_labels_are_ids_and_words_of_ours_and_do_not_pile_up(tmp_path: Path) -> None:
    core = core_with(tmp_path, replica(7001, None))
    deployment = event_of(core).deployment_id
    for hostile in ('evil"} 1\n', "x" * 300, "../../etc"):
        ask(core, model=hostile)
        ask(core, user=hostile)
        core.engine.send(whole_answer(["a"]))
    text = core.gateway.metrics().decode()
    for family in ("responses_total", "first_token_seconds", "output_token_seconds", "queue_seconds", "replica_up"):
        assert f"berth_gateway_{family}" in text
    assert f'berth_gateway_replica_up{{deployment="{deployment}",replica="r7001"}} 1' in text
    assert "evil" not in text
    assert "etc" not in text
    for number in range(50):
        publish(core, name="acme/model", deployment_id=f"d-{number}")
        event_of(core)
    publish(core, name="acme/model", deployment_id="last")
    event_of(core)
    lines = [line for line in core.gateway.metrics().decode().splitlines() if 'deployment="' in line]
    assert {line.split('deployment="')[1].split('"')[0] for line in lines} == {"last"}
    core.close()
