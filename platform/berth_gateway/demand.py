"""From a request as it was admitted to what it asks of limits and budgets. Pure."""

from __future__ import annotations

import re

from berth_gateway.account import Facts, prompt_estimate
from berth_gateway.cost import price_at, prompt_bound, worst_cost
from berth_gateway.permits import Demand

_MEDIA = re.compile(rb'"(?:image_url|input_image|input_audio)"')


def demand_of(facts: Facts) -> Demand:
    """`tokens` by estimate, for limits on speed; `cost` the most it can be, for budgets."""
    route, prepared, caller = facts.route, facts.prepared, facts.caller
    most_prompt = route.context_length * prepared.prompts
    estimate = min(prompt_estimate(facts), most_prompt)
    price = price_at(route.prices, facts.accepted_at)
    cost = 0
    if price is not None:
        cost = worst_cost(price, _most_prompt(facts), prepared.most_tokens)
    return Demand(
        key=caller.key,
        org=caller.org,
        route=route,
        tokens=estimate + prepared.most_tokens,
        cost=cost,
        at=facts.accepted_at,
        # Nobody said how long the answer may be: then it may take all that a minute allows, and no more is asked for.
        open_ended=prepared.most_tokens >= most_prompt,
        least=estimate,
    )


def _most_prompt(facts: Facts) -> int:
    """More prompt tokens than the request can have."""
    body, prompts = facts.prepared.body, facts.prepared.prompts
    most = facts.route.context_length * prompts
    # An image or a recording is more tokens than its bytes tell: only the context bounds it.
    if facts.endpoint.multipart or _MEDIA.search(body):
        return most
    return min(
        most, prompt_bound(facts.prepared.size, chat=facts.endpoint.chat, context_length=most) + 4 * (prompts - 1)
    )
