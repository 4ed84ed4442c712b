"""What is known of usual requests of one key for one deployment before they come: who, where, at what price, under which limits.

Found once and kept until anything of it may have changed: a snapshot, a limit, a price, a period, Valkey's answer (`fast_path`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from berth_gateway import admit
from berth_gateway.admit import Caller
from berth_gateway.contract import Replica, Route, RouteState
from berth_gateway.cost import TEMPLATE_TOKENS, price_at
from berth_gateway.endpoint import Endpoint
from berth_gateway.engines import FILLS_CONTEXT, answers_whole
from berth_gateway.errors import Refusal
from berth_gateway.pools import Kind
from berth_gateway.recording import wish_of
from berth_gateway.route import Address, address
from berth_gateway.surfaces.common import chat_fields, for_caller, stream_options
from berth_gateway.target import Target

if TYPE_CHECKING:
    from berth_gateway.gateway import Gateway


_REPLY = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: req_%b\r\n"
    b"%bopenai-processing-ms: %d\r\n\r\n"
)
_RATES = (
    b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %%d\r\nx-ratelimit-reset-requests: 1m0s\r\n"
)
_TOKENS = b"x-ratelimit-limit-tokens: %d\r\nx-ratelimit-remaining-tokens: %%d\r\nx-ratelimit-reset-tokens: 1m0s\r\n"
_MOST_TAILS = 64


class Grant:
    """`only`: the replica, where there is but one. `since` and `until` in Unix seconds, prices in 10^-12 of the currency for a token."""

    __slots__ = (
        "_form",
        "_form_of",
        "_reply",
        "_reply_form",
        "_tails",
        "_targets",
        "before",
        "budgets",
        "cached_price",
        "caller",
        "context",
        "counts",
        "dearest",
        "deployment_id",
        "endpoint",
        "engine_model",
        "fills_context",
        "generation",
        "input_price",
        "known_to_till",
        "more",
        "most_body",
        "only",
        "output_price",
        "pools",
        "purses",
        "rates",
        "reply",
        "reply_size",
        "route",
        "seats",
        "since",
        "stream_options",
        "tokens",
        "until",
        "waited",
        "whole",
    )

    def __init__(self, gateway: Gateway, caller: Caller, endpoint: Endpoint, route: Route, wall: float) -> None:
        """Raises Refusal where something of it is not known."""
        self.caller, self.endpoint, self.route = caller, endpoint, route
        self.deployment_id = route.deployment_id
        self.generation = gateway.fast.generation
        self.most_body = gateway.config.max_body
        self.since, self.until = float("-inf"), float("inf")
        if caller.key.expires_at is not None:
            self.until = float(caller.key.expires_at)
        self._limit(gateway, wall)
        self._price(wall)
        self._describe(wall)
        self._tails: dict[int, bytes] = {}
        self._form, self._form_of = b"", (0, 0)
        self.known_to_till = False  # whether its limits and budgets are
        self._reply, self._reply_form = self.reply, b""
        self.counts = gateway.loads.of(route.deployment_id)
        self.waited = gateway.telemetry.queue.cell(route.deployment_id)[0]
        self._targets: dict[Address, Target] = {}
        self.only = self.target(gateway, route.replicas[0]) if len(route.replicas) == 1 else None

    def target(self, gateway: Gateway, replica: Replica) -> Target:
        """One of the route's replicas."""
        where = address(replica)
        found = self._targets.get(where)
        if found is None:
            found = self._targets[where] = Target(
                gateway.config.name, self.caller, self.route, self.endpoint, replica, gateway.router.spot(where)
            )  # fmt: skip
        return found

    def _limit(self, gateway: Gateway, wall: float) -> None:
        standing = gateway.gate.standing(self.caller.key, self.caller.org, self.route, wall)
        self.pools, self.budgets, self.purses = standing.pools, standing.budgets, standing.purses
        self.since, self.until = max(self.since, standing.since), min(self.until, standing.until)
        self.rates = [pool for pool in self.pools if pool.kind is Kind.REQUESTS]
        self.tokens = [pool for pool in self.pools if pool.kind is Kind.TOKENS]
        self.seats = [pool for pool in self.pools if pool.kind is Kind.SEATS]

    def _price(self, wall: float) -> None:
        prices = self.route.prices
        price = price_at(prices, wall)
        self.input_price = self.cached_price = self.output_price = 0
        if price is not None:
            self.input_price, self.cached_price, self.output_price = price.input, price.cached, price.output
            if price is not prices[0]:
                self.since = max(self.since, price.valid_from)
        self.dearest = max(self.input_price, self.cached_price)
        self.until = min([self.until, *(each.valid_from for each in prices if each.valid_from > wall)])

    def _describe(self, wall: float) -> None:
        """What engines are told and clients are given."""
        route = self.route
        self.context, self.engine_model = route.context_length, route.engine_model
        self.fills_context, self.whole = route.engine in FILLS_CONTEXT, answers_whole(route.engine)
        self.stream_options: Any = stream_options(route, 1)
        more = msgspec.json.encode(chat_fields(for_caller(route, self.caller)))[1:-1]
        self.more = b"," + more if more else b""
        model = msgspec.json.encode(route.name).replace(b"%", b"%%")
        # What an answer begins with: length, request id, lines about limits, milliseconds, request id, time. Choices and usage follow.
        body = (b'{"id":"%b%%b","object":"%b","created":%%b,"model":%b,"choices":') % (
            self.endpoint.id_prefix.encode(), self.endpoint.answer_object.encode(), model
        )  # fmt: skip
        self.reply = _REPLY + body
        self.reply_size = len(body % (b"0" * 32, b"%d" % int(wall)))
        self.until = min(self.until, float(10 ** len(b"%d" % int(wall))))  # the time has another length then
        self.before = (b'data: {"id":"%b%%b","object":"%b","created":%%d,"model":%b,"choices":') % (
            self.endpoint.id_prefix.encode(),
            self.endpoint.chunk_object.encode(),
            model,
        )

    def reply_of(self, form: bytes) -> bytes:
        """`reply` with these lines about limits in it."""
        if self._reply_form is not form:
            before, _, behind = self.reply.partition(b"%bopenai")
            self._reply, self._reply_form = before + form + b"openai" + behind, form
        return self._reply

    def form(self, requests: int, tokens: int) -> bytes:
        """The x-ratelimit-* lines for these limits but for what remains; 0: there is none."""
        if self._form_of != (requests, tokens):
            lines = _RATES % requests if requests else b""
            self._form, self._form_of = lines + _TOKENS % tokens if tokens else lines, (requests, tokens)
        return self._form

    def demand(self, size: int, limit: int) -> tuple[int, int]:
        """Tokens and cost to be taken for an encoded body of so many bytes whose answer may have so many tokens."""
        context, prompt = self.context, size + TEMPLATE_TOKENS
        units = min(size // 4 or 1, context) + limit
        return units, self.dearest * min(prompt, context) + self.output_price * limit

    def end(self, limit: int) -> bytes:
        """How an encoded body whose answer may have so many tokens ends, instead of with its last brace."""
        found = self._tails.get(limit)
        if found is None:
            found = b',"max_tokens":%d%b}' % (limit, self.more)
            if len(self._tails) < _MOST_TAILS:
                self._tails[limit] = found
        return found

    def end_without_limit(self, size: int) -> bytes:
        """The same for one of `size` bytes where the answer may take all that is left of the context (`surfaces.common.answer_limit`)."""
        context = self.context
        told = context
        if self.fills_context:
            told = context - min(context, size + TEMPLATE_TOKENS)
        return self.end(told) if told >= context // 2 else self.more + b"}"


def find(gateway: Gateway, caller: Caller, endpoint: Endpoint, model: str, wall: float) -> Grant | None:
    """A grant, where requests of this key for this model can be usual ones."""
    view = gateway.store.usable(wall)
    if view is None or endpoint.name != "chat/completions":
        return None
    try:
        route = admit.find_route(view, caller, model)
        admit.check_serves(route, endpoint)
        if route.state is not RouteState.READY or not route.replicas or route.shadow is not None:
            return None
        if wish_of(caller, route) is not None or gateway.tracing is not None or caller.org.padded:
            return None  # what is to be kept, traced or filled up has to be seen
        return Grant(gateway, caller, endpoint, route, wall)
    except Refusal:
        return None
