"""From a request as it was admitted to what it asks of limits and budgets. Pure."""

from __future__ import annotations

from berth_gateway import meter
from berth_gateway.account import Facts
from berth_gateway.cost import price_at, prompt_bound, worst_cost
from berth_gateway.limits import Demand

_IMAGE = b'"image_url"'


def demand_of(facts: Facts) -> Demand:
    """`tokens` by estimate, for limits on speed; `cost` the most it can be, for budgets."""
    route, prepared, caller = facts.route, facts.prepared, facts.caller
    estimate = min(meter.estimate_prompt(prepared.body), route.context_length)
    price = price_at(route.prices, facts.accepted_at)
    cost = 0
    if price is not None:
        # An image is more tokens than its bytes tell: only the context bounds it.
        whole = _IMAGE in prepared.body
        prompt = (
            route.context_length
            if whole
            else prompt_bound(len(prepared.body), chat=facts.endpoint.chat, context_length=route.context_length)
        )
        cost = worst_cost(price, prompt, prepared.most_tokens)
    return Demand(
        key=caller.key,
        org=caller.org,
        route=route,
        tokens=estimate + prepared.most_tokens,
        cost=cost,
        at=facts.accepted_at,
        # Nobody said how long the answer may be: then it may take all that a minute allows, and no more is asked for.
        open_ended=prepared.most_tokens >= route.context_length,
        least=estimate,
    )
