"""The policies of routing by themselves: fair turns, affinity within bounds, rest and trial, shares of revisions."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_gateway import affinity
from berth_gateway.contract import Replica, RevisionWeight, Route, RouteState
from berth_gateway.fairness import DEAREST, QUANTUM, FairQueue
from berth_gateway.health import FIRST_REST, LONGEST_REST, Health
from berth_gateway.route import Router, address

BOUNDED = settings(max_examples=150, deadline=None)


@dataclass(eq=False)
class Waits:
    org_id: str
    key_id: str
    cost: int = 100
    weight: int = 1
    gone: bool = False


waits = st.builds(
    Waits,
    org_id=st.sampled_from("abc"),
    key_id=st.sampled_from("xyz"),
    cost=st.integers(0, 3 * DEAREST),
    weight=st.integers(1, 4),
)


def drain(queue: FairQueue[Waits]) -> list[Waits]:
    out = []
    while queue.head() is not None:
        out.append(queue.pop())
    return out


# --- fair turns


@BOUNDED
@given(st.lists(waits, max_size=60), st.data())
def test_everybody_who_stays_is_let_through_once_and_keys_keep_their_order(
    asked: list[Waits], data: st.DataObject
) -> None:
    queue: FairQueue[Waits] = FairQueue()
    for each in asked:
        queue.add(each)
    leaving = data.draw(st.sets(st.sampled_from(asked)) if asked else st.just(set()))
    for each in leaving:
        queue.left(each)
        queue.left(each)  # leaving twice is leaving once
    stay = [each for each in asked if each not in leaving]
    assert len(queue) == len(stay)
    out = drain(queue)
    assert len(queue) == 0
    assert sorted(map(id, out)) == sorted(map(id, stay))
    for key in {(w.org_id, w.key_id) for w in stay}:
        mine = [w for w in out if (w.org_id, w.key_id) == key]
        assert mine == [w for w in stay if (w.org_id, w.key_id) == key], "first come, first served"


@pytest.mark.parametrize("level", ["org", "key"])
def test_who_has_one_request_does_not_wait_behind_who_has_hundreds(level: str) -> None:
    queue: FairQueue[Waits] = FairQueue()
    for _ in range(400):
        queue.add(Waits("a", "x", cost=QUANTUM))
    for _ in range(50):
        assert queue.head() is not None
        queue.pop()
    small = Waits("b", "y", cost=QUANTUM) if level == "org" else Waits("a", "y", cost=QUANTUM)
    queue.add(small)
    assert drain(queue).index(small) <= 2


def test_dear_requests_get_as_many_tokens_through_as_cheap_ones() -> None:
    queue: FairQueue[Waits] = FairQueue()
    for _ in range(40):
        queue.add(Waits("a", "x", cost=4 * QUANTUM))
    for _ in range(400):
        queue.add(Waits("b", "y", cost=QUANTUM // 4))
    tokens: Counter[str] = Counter()
    for _ in range(150):
        assert queue.head() is not None
        taken = queue.pop()
        tokens[taken.org_id] += taken.cost
    assert abs(tokens["a"] - tokens["b"]) <= 2 * 4 * QUANTUM


def test_turns_follow_weights() -> None:
    queue: FairQueue[Waits] = FairQueue()
    for _ in range(300):
        queue.add(Waits("a", "x", cost=QUANTUM, weight=3))
        queue.add(Waits("b", "y", cost=QUANTUM, weight=1))
    first = Counter(each.org_id for each in drain(queue)[:200])
    assert 145 <= first["a"] <= 155


# --- affinity


def body(*messages: tuple[str, str]) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": r, "content": c} for r, c in messages], "max_tokens": 5},
        separators=(",", ":"),
    ).encode()


def test_a_conversation_keeps_its_key_and_nothing_else_shares_it() -> None:
    first = body(("system", "s"), ("user", "hello"))
    later = body(("system", "s"), ("user", "hello"), ("assistant", "hi"), ("user", "and now?"))
    key = affinity.key_of("epoch", "org", first)
    assert key == affinity.key_of("epoch", "org", later)
    others = [
        affinity.key_of("epoch", "org", body(("system", "t"), ("user", "hello"))),
        affinity.key_of("epoch", "org", body(("system", "s"), ("user", "hullo"))),
        affinity.key_of("epoch", "another", first),
        affinity.key_of("later", "org", first),
    ]
    assert len({key, *others}) == 5
    assert affinity.lead_of(b'{"prompt":"abc","n":1}') == b'"abc"'
    assert affinity.lead_of(b"no json") == b""


names = st.lists(st.text("abcdefgh", min_size=1, max_size=6), min_size=1, max_size=8, unique=True)


@BOUNDED
@given(names, st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=80))
def test_no_replica_gets_more_than_its_part(replicas: list[str], keys: list[bytes]) -> None:
    loads: Counter[str] = Counter()
    for key in keys:
        limit = affinity.bound(loads.total(), len(replicas))
        chosen = affinity.prefer(key, replicas, str, loads.__getitem__, limit)
        assert chosen is not None, "one has always less than the bound"
        loads[chosen] += 1
        assert loads[chosen] <= affinity.bound(loads.total() - 1, len(replicas))


@BOUNDED
@given(names, st.binary(min_size=16, max_size=16), st.data())
def test_who_comes_or_goes_moves_only_its_own_keys(replicas: list[str], key: bytes, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(replicas))
    before = affinity.prefer(key, replicas, str, lambda _: 0, 1)
    after = affinity.prefer(key, [r for r in replicas if r != gone], str, lambda _: 0, 1)
    assert before in (gone, after)


# --- rest and trial


def test_one_failure_is_enough_and_one_trial_decides() -> None:
    health: Health[str] = Health()
    assert health.usable("r", 0)
    health.failed("r", 0)
    health.failed("r", 0.1)  # another request of the same moment
    assert not health.usable("r", FIRST_REST - 0.01)
    assert health.usable("r", FIRST_REST)
    health.sent("r")
    assert not health.usable("r", FIRST_REST + 5), "one trial at a time"
    health.failed("r", FIRST_REST + 5)
    assert not health.usable("r", FIRST_REST + 5 + 2 * FIRST_REST - 0.01), "the rest is twice as long"
    assert health.usable("r", FIRST_REST + 5 + 2 * FIRST_REST)
    health.sent("r")
    health.left("r")
    assert health.usable("r", FIRST_REST + 5 + 2 * FIRST_REST), "a trial that showed nothing is made again"
    health.sent("r")
    health.answered("r")
    assert health.usable("r", 0)
    assert not health.is_ill("r")


@BOUNDED
@given(st.lists(st.tuples(st.sampled_from(["failed", "trial", "left", "answered"]), st.floats(0, 50)), max_size=60))
def test_a_replica_always_comes_back_within_the_longest_rest(history: list[tuple[str, float]]) -> None:
    health: Health[str] = Health()
    now = 0.0
    for what, pause in history:
        now += pause
        if what == "failed":
            health.failed("r", now)
        elif what == "answered":
            health.answered("r")
        elif what == "left":
            health.left("r")
        elif health.usable("r", now):
            health.sent("r")
    health.left("r")
    assert health.usable("r", now + LONGEST_REST)


# --- the router


def route(*replicas: Replica, **fields: object) -> Route:
    values: dict[str, object] = {
        "name": "acme/model", "org_id": "o", "deployment_id": "d", "revision": 1, "state": RouteState.READY,
        "engine": "llamacpp", "engine_model": "m", "endpoints": ("completions",), "context_length": 100, "created": 0,
        "replicas": replicas,
    }  # fmt: skip
    return Route(**(values | fields))  # type: ignore[arg-type]


def replica(number: int, slots: int | None = None, revision: int | None = None) -> Replica:
    return Replica(f"r{number}", "127.0.0.1", 7000 + number, "secret", slots, revision)


@BOUNDED
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.lists(st.one_of(st.binary(min_size=16, max_size=16), st.none()), max_size=80),
    st.data(),
)
def test_no_replica_gets_more_than_it_has_slots(
    slots: list[int], asked: list[bytes | None], data: st.DataObject
) -> None:
    router = Router()
    serving = route(*(replica(n, s) for n, s in enumerate(slots)))
    running: list[Replica] = []
    for lead in asked:
        if running and data.draw(st.booleans()):
            router.end(address(running.pop(data.draw(st.integers(0, len(running) - 1)))))
        chosen = router.choose(serving, (), 0.0, None if lead is None else lambda lead=lead: lead)  # type: ignore[misc]
        if chosen is None:
            assert len(running) == sum(slots), "it waits only when all are full"
        else:
            router.begin(address(chosen))
            running.append(chosen)
            assert router.load(chosen) <= (chosen.slots or 0)


def test_a_failed_replica_is_passed_over_and_the_last_one_is_asked_all_the_same() -> None:
    router = Router()
    serving = route(replica(1), replica(2))
    router.failed(address(replica(1)), 0.0)
    assert {router.choose(serving, (), 0.5).name for _ in range(6)} == {"r2"}  # type: ignore[union-attr]
    router.failed(address(replica(2)), 0.2)
    assert router.choose(serving, (), 0.5).name == "r1", "better the one that has rested longest than nobody"  # type: ignore[union-attr]


@BOUNDED
@given(st.lists(st.integers(0, 20), min_size=2, max_size=4), st.integers(1, 300))
def test_revisions_get_their_share_over_any_stretch(weights: list[int], count: int) -> None:
    router = Router()
    serving = route(
        *(replica(n, revision=n) for n in range(1, len(weights) + 1)),
        weights=tuple(RevisionWeight(n, w) for n, w in enumerate(weights, 1)),
    )
    got = Counter(router.choose(serving, (), 0.0).revision for _ in range(count))  # type: ignore[union-attr]
    total = sum(weights)
    for number, weight in enumerate(weights, 1):
        if total:
            assert abs(got[number] - count * weight / total) <= len(weights)


def test_a_canary_that_cannot_answer_costs_nobody_an_answer() -> None:
    router = Router()
    serving = route(
        replica(1, revision=1), replica(2, revision=2), weights=(RevisionWeight(1, 0), RevisionWeight(2, 100))
    )
    assert router.choose(serving, (), 0.0).revision == 2  # type: ignore[union-attr]
    assert router.choose(serving, {address(replica(2))}, 0.0).revision == 1  # type: ignore[union-attr]
