"""What limits decide without Valkey: the sliding minute, prices, headers, all-or-nothing."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.billing.rating import Prices, Usage, rate, total
from berth_gateway import quota
from berth_gateway.contract import (
    USAGE_FORMAT,
    Budget,
    BudgetScope,
    CountedBy,
    KeyInfo,
    Limits,
    Outcome,
    Period,
    Price,
    UsageEvent,
)
from berth_gateway.cost import cost_of, price_at, prompt_bound, worst_cost
from berth_gateway.errors import Refusal
from berth_gateway.leases import recall
from berth_gateway.limits import Demand, Gate, Permit, Waiting
from berth_gateway.snapshot import View
from berth_gateway.window import WINDOW_SLOTS, Window
from tests.gateway.fleet import Log
from tests.gateway.harness import World


def event(**fields: Any) -> UsageEvent:
    values: dict[str, Any] = {
        "format": USAGE_FORMAT, "event_id": "e", "gateway": "g", "org_id": "o", "key_id": "k", "deployment_id": "d", "revision": 1,
        "endpoint": "chat/completions", "stream": False, "accepted_at": 1000.0, "duration_ms": 1.0, "outcome": Outcome.OK,
        "status": 200, "counted_by": CountedBy.ENGINE,
    }  # fmt: skip
    return UsageEvent(**values | fields)


# --- the sliding minute


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 300), st.integers(1, 10)), max_size=60))
def test_no_minute_sees_more_than_the_limit(limit: int, asked: list[tuple[int, int]]) -> None:
    window, slot, used = Window(), 0, []
    for gap, units in asked:
        slot += gap
        if window.expire(slot) + units <= limit:
            window.add(slot, units)
            used.append((slot, units))
        else:
            wait = round(window.until_free(slot, units, limit) * 10)
            assert wait > 0
            if units <= limit:
                assert window.expire(slot + wait) + units <= limit, "what was promised came true"
                window = _again(used)
                window.expire(slot)
    for start, _ in used:
        assert sum(units for at, units in used if start <= at < start + WINDOW_SLOTS - 1) <= limit


def _again(used: list[tuple[int, int]]) -> Window:
    window = Window()
    for at, units in used:
        window.add(at, units)
    return window


def test_what_is_given_back_is_free_again_and_what_is_over_stays_over() -> None:
    window = Window()
    window.add(5, 10)
    window.add(5, -4)
    assert window.expire(5) == 6
    assert window.expire(5 + WINDOW_SLOTS) == 0
    window.add(5, -3)
    assert window.used == 0
    window.add(900, 2)
    window.add(950, 1)
    window.add(920, 7)  # told late: counts as of the next slot that is known, never as of an earlier one
    assert window.expire(920 + WINDOW_SLOTS) == 8
    assert window.expire(950 + WINDOW_SLOTS) == 0


# --- money


counts = st.integers(0, 10**7)
pico = st.integers(0, 10**12)


@settings(max_examples=200)
@given(
    counts,
    counts,
    counts,
    pico,
    pico,
    pico,
    st.sampled_from(list(Outcome)),
    st.sampled_from(list(CountedBy)),
    st.booleans(),
)
def test_the_gateway_counts_as_the_ledger_does(
    prompt: int, cached: int, completion: int, a: int, b: int, c: int, outcome: Outcome, by: CountedBy, first: bool
) -> None:
    cached = min(cached, prompt)
    made = event(
        prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion, outcome=outcome, counted_by=by,
        first_token_ms=5.0 if first else None,
    )  # fmt: skip
    finished = outcome == Outcome.OK and by == CountedBy.ENGINE
    usage = Usage(prompt, cached, completion, first_token=finished or first, rejected=outcome == Outcome.REJECTED)
    prices = Prices(*(Decimal(each).scaleb(-12) for each in (a, b, c)))
    booked = total(charge.amount for charge in rate(usage, prices))
    cost = cost_of(made, Price(0, a, b, c))
    assert Decimal(cost).scaleb(-12) == booked
    assert cost <= worst_cost(Price(0, a, b, c), prompt, completion)


def test_the_price_is_the_one_valid_then() -> None:
    old, new = Price(100, 1, 1, 1), Price(200, 2, 2, 2)
    assert [price_at((old, new), at) for at in (50, 100, 199.9, 200, 900)] == [old, old, old, new, new]
    assert price_at((), 5) is None


@given(st.text(max_size=200), st.booleans())
def test_a_prompt_has_no_more_tokens_than_its_bound(text: str, chat: bool) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    assert prompt_bound(size, chat=chat, context_length=10**6) > size  # a byte-level token is a byte or more
    assert prompt_bound(size, chat=chat, context_length=50) <= 50


# --- headers


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0121, "13ms"), (1.4, "1.4s"), (60, "1m0s"), (360, "6m0s"), (0, "0ms"), (61.25, "1m1.25s")]
)
def test_durations_are_written_as_go_does(seconds: float, text: str) -> None:
    assert quota.duration(seconds) == text


@given(st.floats(0.0001, 10_000))
def test_retry_after_is_a_whole_number_from_1_to_60(wait: float) -> None:
    refusal = quota.QuotaRefusal("rate_limit_exceeded", "x", "requests", wait=wait)
    lines = dict(line.split(": ") for line in refusal.headers().decode().split("\r\n") if line)
    assert 1 <= int(lines["retry-after"]) <= 60 and 1 <= int(lines["retry-after-ms"]) <= 60_000
    assert int(lines["retry-after"]) * 1000 >= int(lines["retry-after-ms"])
    assert "x-should-retry" not in lines


# --- the gate


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def test_alone_each_worker_has_its_part_of_a_budget_and_remembers_what_it_spent() -> None:
    world, clock = World(), Clock()
    route = world.route("acme/model", 1, prices=(Price(0, 1, 1, 1),))
    world.budgets = [
        Budget("b", world.org.org_id, BudgetScope.ORG, world.org.org_id, 1000, 1, (Period("total", 0, 1e12),))
    ]
    gate = Gate(clock, clock)
    gate.alone, gate.workers = True, 2
    gate.apply({}, tuple(world.budgets))
    log = Log()
    log.events = [event(org_id=world.org.org_id, deployment_id=route.deployment_id, completion_tokens=200)]
    recall(gate, log, View.of(world.snapshot()))
    demand = Demand(world.keys[0], world.org, route, 1, 100, clock())
    answers = [enter(gate, demand) for _ in range(4)]
    assert [isinstance(each, Permit) for each in answers] == [True, True, True, False]
    refusal = answers[-1]
    assert isinstance(refusal, Refusal) and refusal.code == "insufficient_quota"


def gate_and_demand(**limits: int) -> tuple[Gate, Clock, Any]:
    """A gate that has never heard of Valkey: everything is decided here."""
    world, clock = World(), Clock()
    route = world.route("acme/model", 1)
    key = KeyInfo(b"x" * 32, "k1", world.org.org_id, limits=Limits(**limits))

    def demand(tokens: int = 10, cost: int = 0) -> Demand:
        return Demand(key, world.org, route, tokens, cost, clock())

    return Gate(clock, clock), clock, demand


def enter(gate: Gate, demand: Demand) -> Permit | Refusal:
    try:
        found = gate.enter(demand, lambda verdict: None)
    except Refusal as refusal:
        return refusal
    assert not isinstance(found, Waiting)
    return found


def test_a_fourth_request_waits_until_the_first_is_a_minute_old() -> None:
    gate, clock, demand = gate_and_demand(rpm=3)
    for left in (2, 1, 0):
        permit = enter(gate, demand())
        assert isinstance(permit, Permit)
        assert b"x-ratelimit-limit-requests: 3\r\nx-ratelimit-remaining-requests: %d\r\n" % left in permit.lines
        clock.at += 1
    refusal = enter(gate, demand())
    assert isinstance(refusal, quota.QuotaRefusal)
    assert (refusal.status, refusal.type, refusal.code) == (429, "requests", "rate_limit_exceeded")
    assert "limit 3, used 3, requested 1. Try again in 5" in refusal.message
    assert refusal.wait is not None
    clock.at += refusal.wait - 0.2
    assert isinstance(enter(gate, demand()), Refusal)
    clock.at += 0.3
    assert isinstance(enter(gate, demand()), Permit)


def test_tokens_are_set_aside_and_corrected_at_the_end() -> None:
    gate, _, demand = gate_and_demand(tpm=100)
    permit = enter(gate, demand(tokens=80))
    assert isinstance(permit, Permit)
    refusal = enter(gate, demand(tokens=30))
    assert isinstance(refusal, Refusal) and refusal.type == "tokens"
    gate.settle(permit, event(prompt_tokens=10, completion_tokens=10))
    assert isinstance(enter(gate, demand(tokens=80)), Permit)
    assert isinstance(enter(gate, demand(tokens=1)), Refusal)


def test_a_request_above_the_whole_limit_is_told_not_to_try_again() -> None:
    gate, _, demand = gate_and_demand(tpm=100)
    refusal = enter(gate, demand(tokens=101))
    assert isinstance(refusal, quota.QuotaRefusal) and refusal.type == "tokens"
    assert b"x-should-retry: false" in refusal.headers() and b"retry-after:" not in refusal.headers()
    assert isinstance(enter(gate, demand(tokens=100)), Permit), "the refusal took nothing"


def test_seats_are_held_to_the_end_and_given_back_once() -> None:
    gate, _, demand = gate_and_demand(concurrency=2)
    first, second = enter(gate, demand()), enter(gate, demand())
    assert isinstance(first, Permit) and isinstance(second, Permit)
    assert isinstance(enter(gate, demand()), Refusal)
    gate.settle(first, event())
    gate.settle(first, event())
    gate.cancel(first)
    assert isinstance(enter(gate, demand()), Permit)
    assert isinstance(enter(gate, demand()), Refusal)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 80), st.booleans()), max_size=40))
def test_a_refusal_takes_nothing_and_a_cancelled_request_gives_all_back(calls: list[tuple[int, int, bool]]) -> None:
    gate, clock, demand = gate_and_demand(rpm=10, tpm=100, concurrency=4)
    running: list[Permit] = []
    for tokens, gap, end in calls:
        clock.at += gap / 10
        before = [(pool.own.used, pool.in_use) for pool in gate.pools]
        made = enter(gate, demand(tokens=tokens))
        if isinstance(made, Permit):
            running.append(made)
        elif before:
            for pool, (used, in_use) in zip(gate.pools, before, strict=True):
                assert (pool.own.used, pool.in_use) in ((used, in_use), (pool.own.expire(int(clock.at * 10)), in_use))
        if end and running:
            gate.cancel(running.pop())
        assert all(pool.own.used <= pool.limit and pool.in_use <= pool.limit for pool in gate.pools)
        assert next(pool.in_use for pool in gate.pools if pool.kind.value == "seats") == len(running)
