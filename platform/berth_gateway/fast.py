"""The usual request, in as few steps as it takes: a known head, a plain chat, limits with room, an idle connection to a replica,
and an answer that comes as it should.

The same as Client, `dispatch`, Gate, Places, Exchange, Upstream and ChoicesRelay do together; a property test holds the two ways
together. Whatever is not usual is left to them: before anything was taken by saying so, afterwards by becoming an Exchange in the
state that it would be in. Three parts: the request (here), its answer (`fast_answer`) and
what becomes of it otherwise (`fast_request`). The two long functions are flat on purpose: a call costs as much as ten of their lines
(docs/decisions/0011-one-flat-way-for-the-usual-request.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from berth_gateway import affinity
from berth_gateway.admit import Caller
from berth_gateway.cost import TEMPLATE_TOKENS
from berth_gateway.fast_answer import UsualAnswer
from berth_gateway.grant import Grant
from berth_gateway.pools import Pool
from berth_gateway.repeat import Known
from berth_gateway.target import Target
from berth_gateway.usual import UNUSUAL, decode
from berth_gateway.window import SLOT_SECONDS

if TYPE_CHECKING:
    from berth_gateway.client import Client
    from berth_gateway.gateway import Gateway

_RATES = b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\nx-ratelimit-reset-requests: %b\r\n"
_TOKENS = b"x-ratelimit-limit-tokens: %d\r\nx-ratelimit-remaining-tokens: %d\r\nx-ratelimit-reset-tokens: %b\r\n"
_encode = msgspec.json.Encoder().encode


class FastExchange(UsualAnswer):
    """Takes in what a client sends."""

    def __init__(self, gateway: Gateway, client: Client, known: Known) -> None:
        super().__init__(gateway, client, known)
        self._generation = -1
        self._grants: dict[str, Grant] = {}
        self.know(known)

    def know(self, known: Known) -> None:
        """The head that the connection's next requests will probably have."""
        self._known = known
        self._form = known.form
        self._generation = -1

    def meet(self, caller: Caller) -> None:
        """Who calls has been found anew."""
        endpoint = self._known.place.endpoint
        if endpoint is not None:
            self._caller = caller
            self._generation = self._path.generation
            self._grants = self._path.grants_of(caller, endpoint)

    # From the client

    def take(self, data: bytes) -> bool:
        """Whether `data` was one whole usual request. False: nothing has happened."""
        body = self._form.body(data)
        return body is not None and self.admit(body)

    def admit(self, body: bytes) -> bool:  # noqa: C901 - see the module
        """The same for a body behind the head that is known."""
        path = self._path
        if not path.open or self._generation != path.generation:
            return False
        try:
            asked = decode(body)
        except UNUSUAL:
            return False
        grant = self._grants.get(asked.model)
        wall = path.wall()
        if grant is None or not grant.since <= wall < grant.until:
            grant = self._find(asked.model)
            if grant is None:
                return False
        target, crowds, ill = grant.only, self._crowds, self._ill
        if self._strikes or (crowds and grant.deployment_id in crowds):
            return False
        if target is not None and (target.spot.in_flight >= target.slots or (ill and target.spot.where in ill)):
            return False

        # What the engine will be sent
        stream, shown = asked.stream is True, asked.stream_options
        if stream:
            shown = shown is not UNSET and shown.include_usage is True
            asked.stream_options = grant.stream_options
        elif shown is not UNSET or not grant.whole:
            return False
        else:
            asked.stream = UNSET
        context = grant.context
        limit, other = asked.max_tokens, asked.max_completion_tokens
        if other is not UNSET:
            asked.max_completion_tokens = UNSET
            if limit is UNSET or other < limit:
                limit = other
        asked.max_tokens = UNSET
        asked.model = grant.engine_model
        sent = _encode(asked)
        if limit is not UNSET and limit < context:
            sent = b'%b,"max_tokens":%d%b}' % (sent[:-1], limit, grant.more)
        else:
            limit = context
            sent = grant.without_limit(sent)

        # Whether it may go
        now = path.now()
        size, slot, connected = len(sent), int(now / SLOT_SECONDS), path.connected
        units = size // 4 or 1
        units = (units if units < context else context) + limit
        for pool in grant.rates:
            if pool.turn != slot:
                pool.turn_to(slot, now, connected=connected, workers=path.workers)
            if pool.taken >= pool.most:
                return False
        for pool in grant.tokens:
            if pool.turn != slot:
                pool.turn_to(slot, now, connected=connected, workers=path.workers)
            if pool.taken + units > pool.most or units > pool.limit:
                return False
        for pool in grant.seats:
            if pool.turn != slot:
                pool.turn_to(slot, now, connected=connected, workers=path.workers)
            if pool.in_use >= pool.most:
                return False
        prompt = size + TEMPLATE_TOKENS
        cost = grant.dearest * (prompt if prompt < context else context) + grant.output_price * limit
        purses = grant.purses
        if purses and not path.funded:
            return False
        for purse in purses:
            if purse.claim - purse.spent - purse.reserved < cost or (connected and not purse.usable(now)):
                return False

        if target is None:
            target = self._choose(grant, sent, now)
            if target is None:
                return False

        # It goes
        lines = b""
        if grant.rates:
            for pool in grant.rates:
                pool.taken += 1
            lines = self._left(_RATES, grant.rates)
        if grant.tokens:
            for pool in grant.tokens:
                pool.taken += units
            lines += self._left(_TOKENS, grant.tokens)
        for pool in grant.seats:
            pool.taken += 1
            pool.in_use += 1
        for purse in purses:
            purse.reserved += cost
            purse.demand += cost
        counts = grant.counts
        counts.arrivals += 1
        ids = path.ids
        if not ids:
            path.make_ids()
        event_id = path.moment(int(wall * 1000)) + ids.pop()
        request_id = event_id.replace(b"-", b"")
        self._stream, self._shown, self._sent, self._limit, self._lines = stream, shown, sent, limit, lines
        self._units, self._cost, self._slot, self._wall, self._started = units, cost, slot, wall, now
        self.request_id, self._event_id = request_id, event_id
        self._client.began_fast(self, now)
        spot = target.spot
        idle = spot.idle
        if not idle:
            self._ask_longer(grant, target.replica)
            return True
        counts.in_flight += 1
        grant.waited[0] += 1
        spot.in_flight += 1
        upstream = idle.pop()
        upstream.fast = self
        self._grant, self._target, self._upstream = grant, target, upstream
        self._running.add(self)
        record = (target.stream_stencil if stream else target.stencil).open(event_id, wall)
        path.open_records[event_id] = record
        path.records.append(record)
        path.asks.append((upstream, b"%b%b\r\ncontent-length: %d\r\n\r\n%b" % (target.head, request_id, size, sent)))
        if not path.due:
            path.later()
        return True

    def _choose(self, grant: Grant, sent: bytes, now: float) -> Target | None:
        """Which of several replicas; None: none has room."""
        gateway = self._gateway
        view = gateway.store.view
        epoch, org_id = "" if view is None else view.epoch, grant.caller.org.org_id
        replica = gateway.router.choose(grant.route, (), now, lambda: affinity.key_of(epoch, org_id, sent))
        if replica is None:
            return None
        target: Target = grant.target(gateway, replica)
        if self._ill:
            gateway.router.health.sent(target.spot.where)
        return target

    @staticmethod
    def _left(template: bytes, pools: list[Pool]) -> bytes:
        """x-ratelimit-* of the limit that is nearest to being used up."""
        limit, least = 1, 1 << 62
        for pool in pools:
            left, held = pool.own_left + pool.back - pool.taken, pool.held_left - pool.taken
            if held < left:
                left = held
            if left * limit < least * pool.limit:
                limit, least = pool.limit, left
        if least < 0:
            least = 0
        return template % (limit, least, b"0ms" if least >= limit else b"1m0s")

    def _find(self, model: str) -> Grant | None:
        path, endpoint = self._path, self._known.place.endpoint
        if endpoint is None or self._generation != path.generation:
            return None
        return path.grant(self._caller, endpoint, model)
