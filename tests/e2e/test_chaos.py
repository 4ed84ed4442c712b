"""500 mixed requests with clients that leave at random, while every process is killed once: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal

import httpx
import psycopg
import pytest

from tests.e2e.conftest import Platform

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

REQUESTS = 500
PARALLEL = 12
# After how many finished requests which process is killed.
KILLS = {80: "gateway", 170: "worker", 260: "valkey", 350: "postgres"}


@dataclass
class Seen:
    """What the clients know. A request id that came with a 200 was accepted for certain."""

    accepted: list[str] = field(default_factory=list)
    unanswered: int = 0  # broken off before a head came: may or may not have been accepted
    refused: Counter[int] = field(default_factory=Counter)
    finished: int = 0


async def one_request(client: httpx.AsyncClient, model: str, dice: random.Random, seen: Seen) -> None:
    """A random kind of call: chat or completion, stream or not, read to the end or left in the middle."""
    stream, leave = dice.random() < 0.6, dice.random() < 0.3
    length = dice.choice([1, 2, 4, 12])
    if dice.random() < 0.5:
        path, body = "/chat/completions", {"messages": [{"role": "user", "content": f"Count to {length}."}]}
    else:
        path, body = "/completions", {"prompt": f"Number {length} is"}
    try:
        async with client.stream(
            "POST", path, json={"model": model, "max_tokens": length, "stream": stream, **body}
        ) as answer:
            if answer.status_code == 200:
                seen.accepted.append(answer.headers["x-request-id"])
            else:
                seen.refused[answer.status_code] += 1
            async for _ in answer.aiter_bytes():
                if leave and dice.random() < 0.4:
                    break
    except httpx.ConnectError:
        seen.refused[0] += 1  # nobody listened: certainly not accepted
        await asyncio.sleep(0.2)
    except httpx.HTTPError:
        seen.unanswered += 1
    finally:
        seen.finished += 1


async def storm(platform: Platform, seen: Seen) -> None:
    dice = random.Random(20261130)
    queue = iter(range(REQUESTS))
    pending = dict(KILLS)
    headers = {"Authorization": f"Bearer {platform.demo['api_key']}"}
    async with httpx.AsyncClient(base_url=platform.demo["api_base"], headers=headers, timeout=60) as client:

        async def worker() -> None:
            for _ in queue:
                await one_request(client, platform.demo["model"], dice, seen)
                for after in [count for count in pending if seen.finished >= count]:
                    name = pending.pop(after)
                    await asyncio.to_thread(platform.kill, name)

        await asyncio.gather(*(worker() for _ in range(PARALLEL)))
    assert pending == {}


def test_usage_and_money_survive_every_kill(platform_up: Platform) -> None:
    with psycopg.connect(platform_up.database_url) as connection:
        before = {str(row[0]) for row in connection.execute("select id from metering_usageevent").fetchall()}
    seen = Seen()
    asyncio.run(storm(platform_up, seen))
    platform_up.wait_for(platform_up.everything_is_ingested, seconds=60)
    platform_up.wait_for(lambda: unrated(platform_up) == 0, seconds=60)

    with psycopg.connect(platform_up.database_url) as connection:
        events = {
            str(row[0]): row[1] for row in connection.execute("select id, outcome from metering_usageevent").fetchall()
        }
    new = set(events) - before
    accepted = {platform_up.event_id_of(request_id) for request_id in seen.accepted}
    print(f"accepted {len(accepted)}, unanswered {seen.unanswered}, refused {dict(seen.refused)}, events {len(new)}")
    print(f"outcomes {Counter(events[event] for event in new)}")
    assert len(accepted) == len(seen.accepted), "request ids are unique"
    assert accepted - new == set(), "an accepted request has no usage event"
    # What is beyond the certain ones can only be requests whose answer was cut off before its head.
    assert len(new - accepted) <= seen.unanswered + seen.refused[503] + seen.refused[504] + seen.refused[400]
    assert len(accepted) > REQUESTS / 2, "the storm mostly met a serving platform"
    check_money(platform_up)


def unrated(platform: Platform) -> int:
    query = (
        "select count(*) from metering_usageevent u left join billing_ratedevent r on r.id = u.id where r.id is null"
    )
    with psycopg.connect(platform.database_url) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])


def check_money(platform: Platform) -> None:
    """Ledger, rated events and statement are the same money: exactly, and per line to the micro-unit."""
    with psycopg.connect(platform.database_url) as connection:
        rated = connection.execute("select coalesce(sum(amount), 0) from billing_ratedevent").fetchone()
        owed = connection.execute(
            "select coalesce(sum(amount), 0) from billing_ledgerentry where account = 'receivable'"
        ).fetchone()
        balance = connection.execute("select coalesce(sum(amount), 0) from billing_ledgerentry").fetchone()
        doubled = connection.execute(
            "select count(*) from (select event_id, unit, account from billing_ledgerentry where reverses_id is null "
            "group by 1, 2, 3 having count(*) > 1) d"
        ).fetchone()
    assert rated is not None
    assert rated == owed
    assert balance == (Decimal(0),)
    assert doubled == (0,)
    session = platform.sign_in()
    months = session.get("/api/v1/orgs/my-org/statements").json()["items"]
    exact = micro = 0
    for month in months:
        statement = session.get(f"/api/v1/orgs/my-org/statements/{month['period']}").json()
        for line in statement["lines"]:
            assert line["amount_micro"] == int((Decimal(line["exact"]) * 1_000_000).to_integral_value())
            exact += Decimal(line["exact"])
            micro += line["amount_micro"]
        assert statement["total_micro"] == sum(line["amount_micro"] for line in statement["lines"])
    assert exact == rated[0]
    assert micro > 0
