"""The usual request, in as few steps as it takes: a known head, a plain chat, limits with room, an idle connection to a replica,
and an answer that comes as it should.

The same as Client, `dispatch`, Gate, Places, Exchange, Upstream and ChoicesRelay do together; a property test holds the two ways
together. Whatever is not usual is left to them: before anything was taken by saying so, afterwards by becoming an Exchange in the
state that it would be in. Three parts: the request (here), its answer (`fast_answer`) and
what becomes of it otherwise (`fast_request`). The two long functions are flat on purpose: a call costs as much as ten of their lines
(docs/decisions/0011-one-flat-way-for-the-usual-request.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from berth_gateway import affinity
from berth_gateway.admit import Caller
from berth_gateway.cost import TEMPLATE_TOKENS
from berth_gateway.fast_answer import UsualAnswer
from berth_gateway.grant import Grant
from berth_gateway.repeat import Known
from berth_gateway.sample import MOST_TEXT, UNPLAIN, Sample, split
from berth_gateway.target import Target
from berth_gateway.usual import UNUSUAL, decode

if TYPE_CHECKING:
    from berth_gateway.client import Client
    from berth_gateway.gateway import Gateway

_encode = msgspec.json.Encoder().encode


class FastExchange(UsualAnswer):
    """Takes in what a client sends."""

    __slots__ = ("_caller", "_form", "_generation", "_grants")

    def __init__(self, gateway: Gateway, client: Client, known: Known) -> None:
        super().__init__(gateway, client, known)
        self._caller: Caller = known.caller
        self._grants: dict[str, Grant] = {}
        self.know(known)

    def know(self, known: Known) -> None:
        """The head that the connection's next requests will probably have."""
        self._known = known
        self._form = known.form
        self._generation = -1
        self._grants = {}

    def meet(self, caller: Caller) -> None:
        """Who calls has been found anew."""
        endpoint = self._known.place.endpoint
        if endpoint is not None:
            self._caller = caller
            self._generation = self._path.generation
            self._grants = self._path.grants_of(caller, endpoint)

    # From the client

    def admit(self, body: bytes) -> bool:
        """The same for a body behind the head that is known."""
        return self.take(b"", body)

    def take(self, data: bytes, body: bytes | None = None) -> bool:  # noqa: C901 - see the module
        """Whether `data` was one whole usual request. False: nothing has happened."""
        form = self._form
        if body is None:
            if len(data) == form.size and data[: form.head_size] == form.head:
                body = data[form.head_size :]
            else:
                body = form.body(data)
                if body is None:
                    return False
        path, till, sample = self._path, self._till, form.sample
        if len(body) > path.most_body:
            return False
        now, wall = path.now(), path.wall()
        grant: Grant | None = None
        asked: Any = None
        if sample is not None and till.grant is sample.grant and 0 <= len(body) - sample.least <= MOST_TEXT:
            behind = len(body) - sample.skip
            text = body[sample.at : behind]
            if (
                body[: sample.at] == sample.before and body[behind:] == sample.behind
                and len(text.translate(None, UNPLAIN)) == len(text)
            ):  # fmt: skip
                grant, sent = sample.grant, sample.sent_before + text + sample.sent_behind
                stream, shown, limit = sample.stream, sample.shown, sample.limit
        if grant is None:
            try:
                asked = decode(body)
            except UNUSUAL:
                return False
            grant = self._grants.get(asked.model)
            if grant is None or till.grant is not grant:
                grant = self._find(asked.model, grant, wall)
                if grant is None:
                    return False
        target = grant.only
        if self._strikes or self._crowds or self._ill:
            if self._strikes or grant.deployment_id in self._crowds:
                return False
            if target is not None and target.spot.where in self._ill:
                return False
        if target is not None and target.spot.in_flight >= target.spot.most:
            return False

        # What the engine will be sent
        context = grant.context
        if asked is not None:
            stream, shown = asked.stream is True, asked.stream_options
            if stream:
                shown = shown is not UNSET and shown.include_usage is True
                asked.stream_options = grant.stream_options
            elif shown is not UNSET or not grant.whole:
                return False
            elif asked.stream is not UNSET:
                asked.stream = UNSET
            limit, other = asked.max_tokens, asked.max_completion_tokens
            if other is not UNSET:
                asked.max_completion_tokens = UNSET
                if limit is UNSET or other < limit:
                    limit = other
            if limit is UNSET or limit >= context:
                limit = None
            asked.max_tokens = UNSET
            asked.model = grant.engine_model
            sent = _encode(asked)[:-1]
            form.misses += 1
            if not form.misses & (form.misses - 1):
                parts = split(body, asked)
                if parts is not None:
                    form.sample = Sample(grant, *parts, limit, stream=stream, shown=shown)
        else:
            form.misses = 0
        if limit is not None:
            end = grant.end(limit)
        else:
            limit, end = context, grant.end_without_limit(len(sent) + 1)

        # Whether it may go
        size = len(sent) + len(end)
        units, prompt = size // 4 or 1, size + TEMPLATE_TOKENS
        units = (units if units < context else context) + limit
        cost = grant.dearest * (prompt if prompt < context else context) + grant.output_price * limit
        if (
            till.grant is not grant or now >= till.until
            or till.left < 1 or till.tokens < units or till.money < cost
        ) and not path.opens(grant, units, cost, now, wall):  # fmt: skip
            return False
        if target is None:
            target = self._choose(grant, sent + end, now)
            if target is None:
                return False
            if till.grant is not grant and not path.opens(grant, units, cost, now, wall):
                return False

        # It goes
        till.left = left = till.left - 1
        till.tokens = tokens = till.tokens - units
        till.money -= cost
        if till.shows == 3:
            left += till.rates
            own, held = till.own + till.returned, till.held
            tokens += own if own < held else held
            self._told = (left if left > 0 else 0), (tokens if tokens > 0 else 0)
        else:
            self._told = None
            self._lines = till.lines(left, tokens)
        self._form_told = till.form
        ids = path.ids
        if not ids:
            path.make_ids()
        ms = int(wall * 1000)
        request_id = (path.moment if ms == path.ms else path.moment_of(ms)) + ids.pop()
        self._stream, self._shown, self._limit = stream, shown, limit
        self._shape = None
        self._units, self._cost, self._slot, self._wall, self._started = units, cost, till.slot, wall, now
        self.request_id, self._created = request_id, path.second
        self._message = message = target.ask % (request_id, size, sent, end)
        self._client.began_fast(self, now)
        spot = target.spot
        idle = spot.idle
        if not idle:
            self._ask_longer(grant, target.replica)
            return True
        spot.in_flight += 1
        upstream = idle.pop()
        upstream.fast = self
        self._grant, self._target, self._upstream = grant, target, upstream
        self._running.add(self)
        stencil = target.stream_stencil if stream else target.stencil
        if not stencil.opened and not stencil.ended:
            path.touched.append(stencil)
        stencil.opened.append((request_id, wall))
        path.asks.append((upstream, message))
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

    def _find(self, model: str, known: Grant | None, wall: float) -> Grant | None:
        """A grant that holds now."""
        path, endpoint = self._path, self._known.place.endpoint
        if endpoint is None or not path.open or self._generation != path.generation:
            return None
        if known is not None and known.since <= wall < known.until:
            return known
        return path.grant(self._caller, endpoint, model)
