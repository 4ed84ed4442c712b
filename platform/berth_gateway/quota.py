"""Refusals for limits and budgets, and the x-ratelimit-* lines, as OpenAI words them. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from berth_gateway.contract import Budget, BudgetScope, Period
from berth_gateway.errors import Refusal
from berth_gateway.pools import Kind, Pool

_WHAT = {
    Kind.REQUESTS: "requests per min (RPM)",
    Kind.TOKENS: "tokens per min (TPM)",
    Kind.SEATS: "requests at one moment (concurrency)",
}
_WHOSE = {
    BudgetScope.ORG: "this organization",
    BudgetScope.DEPLOYMENT: "this model",
    BudgetScope.KEY: "this API key",
    BudgetScope.MEMBER: "this API key's owner",
}
LONGEST_WAIT = 60


class QuotaRefusal(Refusal):
    """429. `wait`: seconds after which it may work; None: waiting does not help, so clients are told not to retry."""

    def __init__(self, code: str, message: str, kind: str, *, wait: float | None, lines: bytes = b"") -> None:
        super().__init__(code, message)
        self.type = kind
        self.wait = wait
        self.lines = lines

    def headers(self) -> bytes:
        if self.wait is None:
            return self.lines + b"x-should-retry: false\r\n"
        whole = max(1, min(LONGEST_WAIT, math.ceil(self.wait)))
        exact = max(1, min(LONGEST_WAIT * 1000, math.ceil(self.wait * 1000)))
        return self.lines + b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (whole, exact)


def limit_reached(model: str, pool: Pool, units: int, now: float, *, connected: bool, lines: bytes) -> QuotaRefusal:
    wait = pool.wait_seconds(units, now)
    used = pool.limit - pool.remaining(now, connected=connected)
    return QuotaRefusal(
        "rate_limit_exceeded",
        f"Rate limit reached for {model} on {_WHAT[pool.kind]}: limit {pool.limit}, used {used}, requested {units}. "
        f"Try again in {duration(wait)}.",
        "tokens" if pool.kind is Kind.TOKENS else "requests",
        wait=wait,
        lines=lines,
    )


def too_large(model: str, pool: Pool, units: int, lines: bytes) -> QuotaRefusal:
    """One request above the whole limit: no waiting helps."""
    return QuotaRefusal(
        "rate_limit_exceeded",
        f"Request too large for {model} on {_WHAT[pool.kind]}: limit {pool.limit}, requested {units}. "
        "Shorten the prompt or lower max_tokens.",
        "tokens" if pool.kind is Kind.TOKENS else "requests",
        wait=None,
        lines=lines,
    )


def used_up(budget: Budget, period: Period) -> QuotaRefusal:
    """Says no amounts: who may call need not be one who may see money."""
    if period.name == "total":
        until = ""
    else:
        until = f", or wait until {datetime.fromtimestamp(period.ends_at, UTC).strftime('%Y-%m-%dT%H:%M:%SZ')}"
    return QuotaRefusal(
        "insufficient_quota",
        f"You exceeded your current quota: what is left of the hard limit of {_WHOSE[budget.scope]} does not cover this request. "
        f"Ask for a higher budget{until}.",
        "insufficient_quota",
        wait=None,
    )


def closed() -> Refusal:
    """Nobody knows what is left of a budget: no fault of the key, so 503."""
    return Refusal(
        "service_unavailable",
        "The budget of this request cannot be checked right now. Try again shortly.",
        retry_after=1,
    )


def _template(name: bytes) -> bytes:
    lines = (b"x-ratelimit-limit-%b: %%d", b"x-ratelimit-remaining-%b: %%d", b"x-ratelimit-reset-%b: %%b")
    return b"".join(line % name + b"\r\n" for line in lines)


_LINES = ((Kind.REQUESTS, _template(b"requests")), (Kind.TOKENS, _template(b"tokens")))


def lines(pools: list[Pool], now: float, *, connected: bool) -> bytes:
    """x-ratelimit-* of the tightest limit on requests and of the tightest on tokens."""
    out = b""
    for kind, template in _LINES:
        tightest: Pool | None = None
        least = 0
        for pool in pools:
            if pool.kind is kind:
                left = pool.remaining(now, connected=connected)
                if tightest is None or left * tightest.limit < least * pool.limit:
                    tightest, least = pool, left
        if tightest is not None:
            limit = tightest.limit
            out += template % (limit, least, b"0ms" if least >= limit else b"1m0s")
    return out


def duration(seconds: float) -> str:
    """As Go writes it, which is what clients parse: 12ms, 1.4s, 6m0s."""
    milliseconds = max(0, math.ceil(seconds * 1000))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{text}" if minutes else text
