"""How fast something may be used, and how much may be spent."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """How fast something may be used: requests and tokens in any minute, requests at one moment. None: no limit."""

    rpm: int | None = None
    tpm: int | None = None
    concurrency: int | None = None


class Price(msgspec.Struct, frozen=True):
    """Price of one token, in 10^-12 of the currency's main unit, from `valid_from` (Unix seconds) on."""

    valid_from: float
    input: int
    cached: int
    output: int


PRICE_CEILING = 10**18  # a million of the currency for one token: beyond any price, and far below 2^63


class BudgetScope(StrEnum):
    """What a budget is about; usage of the organisation's requests with that id counts."""

    ORG = "org"
    DEPLOYMENT = "deployment"
    KEY = "key"
    MEMBER = "member"


class Period(msgspec.Struct, frozen=True):
    """A stretch of time that a budget is for: requests accepted from `starts_at` to before `ends_at` (Unix seconds)."""

    name: str  # "2026-11", "2026-11-30", "total"
    starts_at: float
    ends_at: float


class Budget(msgspec.Struct, frozen=True):
    """A hard limit on what may be spent in each period. `limit_pico` in 10^-12 of the currency's main unit, below 2^63."""

    budget_id: str
    org_id: str
    scope: BudgetScope
    subject_id: str  # of the organisation, deployment, key or member
    limit_pico: int
    version: int  # rises with each change
    periods: tuple[Period, ...]  # the current one and those that follow while this snapshot may be in use


class MemberInfo(msgspec.Struct, frozen=True):
    """A member whose keys together are limited. Members without limits are not in a snapshot."""

    member_id: str
    org_id: str
    limits: Limits
