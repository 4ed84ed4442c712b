"""What a request may cost at most, and what it did cost, in whole 10^-12 of the currency. Pure; the ledger's arithmetic on integers."""

from __future__ import annotations

from collections.abc import Sequence

from berth_gateway.contract import CountedBy, Outcome, Price, UsageEvent

# Tokens that a model's chat template may add to what the body spells out (a default system prompt, markers of roles).
TEMPLATE_TOKENS = 256


def price_at(prices: Sequence[Price], at: float) -> Price | None:
    """The price valid at that instant (Unix seconds). Before the first one, the first: nothing is free by accident. None: no price."""
    valid = prices[0] if prices else None
    for price in prices:
        if price.valid_from > at:
            break
        valid = price
    return valid


def prompt_bound(body_bytes: int, *, chat: bool, context_length: int) -> int:
    """More tokens than a prompt of that many bytes can have: a token of a byte-level vocabulary is at least a byte."""
    return min(context_length, body_bytes + (TEMPLATE_TOKENS if chat else 1))


def worst_cost(price: Price, prompt_tokens: int, completion_tokens: int) -> int:
    """No request of at most so many tokens costs more."""
    return max(price.input, price.cached) * prompt_tokens + price.output * completion_tokens


def cost_of(event: UsageEvent, price: Price) -> int:
    """What the ledger will book for an event at that price: exactly `berth.billing.rating.rate`."""
    if event.outcome is Outcome.REJECTED:
        return 0
    finished = event.outcome is Outcome.OK and event.counted_by is CountedBy.ENGINE
    cost = event.completion_tokens * price.output
    if finished or event.first_token_ms is not None or event.completion_tokens > 0:
        cost += (event.prompt_tokens - event.cached_tokens) * price.input + event.cached_tokens * price.cached
    return cost
