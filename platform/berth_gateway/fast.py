"""The usual request, in as few steps as it takes: a known head, a plain chat, limits with room, an idle connection to the one replica,
and an answer in one piece.

The same as Client, `dispatch`, Gate, Places, Exchange, Upstream and ChoicesRelay do together; a property test holds the two ways
together. Whatever is not usual is left to them: before anything was taken by saying so, afterwards by becoming an Exchange in the
state that it would be in. The two long functions are flat on purpose: a call costs as much as ten of their lines
(docs/decisions/0009-one-flat-way-for-the-usual-request.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from berth_gateway import admit
from berth_gateway.account import Facts, bill_of, event_of
from berth_gateway.admit import Caller
from berth_gateway.choices import decode_answer
from berth_gateway.contract import Outcome, UsageEvent
from berth_gateway.cost import TEMPLATE_TOKENS
from berth_gateway.demand import demand_of
from berth_gateway.endpoint import Prepared
from berth_gateway.exchange import Exchange
from berth_gateway.fast_path import FastPath
from berth_gateway.fast_stream import FastStream, within
from berth_gateway.grant import Grant
from berth_gateway.limits import Permit
from berth_gateway.meter import Counts
from berth_gateway.pools import Kind, Pool
from berth_gateway.relay import Relay
from berth_gateway.repeat import Known
from berth_gateway.route import MAX_IDLE
from berth_gateway.usual import UNUSUAL, decode
from berth_gateway.window import SLOT_SECONDS

if TYPE_CHECKING:
    from berth_gateway.client import Client
    from berth_gateway.gateway import Gateway
    from berth_gateway.upstream import Upstream

MAX_ANSWER = 1024 * 1024  # bytes of an answer in pieces; a longer one is no usual one
_MOST_DIGITS = 16
_RATES = b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\nx-ratelimit-reset-requests: %b\r\n"
_TOKENS = b"x-ratelimit-limit-tokens: %d\r\nx-ratelimit-remaining-tokens: %d\r\nx-ratelimit-reset-tokens: %b\r\n"
_REPLY = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: req_%b\r\n"
    b"%bopenai-processing-ms: %d\r\n\r\n%b"
)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\nx-accel-buffering: no\r\nx-request-id: req_%b\r\n%bopenai-processing-ms: %%d\r\n\r\n"
)
_encode = msgspec.json.Encoder().encode


class FastExchange:
    """One connection's usual requests, one after the other. Stands among the gateway's exchanges while one runs."""

    def __init__(self, gateway: Gateway, client: Client, known: Known) -> None:
        self._gateway = gateway
        self._path: FastPath = gateway.fast
        self._client = client
        self._generation = -1
        self._grants: dict[str, Grant] = {}
        self._running = gateway.exchanges
        self._crowds, self._ill, self._strikes = (
            gateway.places.rooms,
            gateway.router.health.ill,
            gateway.suspects.strikes,
        )
        self.know(known)
        self._part = b""  # of an answer
        self._upstream: Upstream | None = None
        self._grant: Grant | None = None
        self._units = self._cost = self._limit = self._slot = 0
        self._wall = self._started = 0.0
        self._sent = self.request_id = self._event_id = b""
        self._stream = False
        self._shown: Any = UNSET
        self._flow: FastStream | None = None
        self._lines = b""  # x-ratelimit-*

    def know(self, known: Known) -> None:
        """The head that the connection's next requests will probably have."""
        self._known = known
        self._before, self._behind = known.form.before, known.form.behind
        self._at, self._skip = known.form.at, known.form.skip
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
        at = self._at
        if not data.startswith(self._before):
            return False
        end = data.find(b"\r", at, at + _MOST_DIGITS)
        if not data.startswith(self._behind, end):
            return False
        body = data[end + self._skip :]
        return data[at:end] == b"%d" % len(body) and self.admit(body)

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
        spot, crowds, ill = grant.spot, self._crowds, self._ill
        idle = spot.idle
        if not idle or spot.in_flight >= grant.slots or self._strikes:
            return False
        if (crowds and grant.deployment_id in crowds) or (ill and spot.where in ill):
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
        counts.in_flight += 1
        grant.waited[0] += 1
        spot.in_flight += 1
        upstream = self._upstream = idle.pop()
        upstream.fast = self
        ids = path.ids
        if not ids:
            path.make_ids()
        event_id = path.moment(int(wall * 1000)) + ids.pop()
        request_id = event_id.replace(b"-", b"")
        self._grant, self._stream, self._shown, self._sent, self._limit, self._lines = (
            grant,
            stream,
            shown,
            sent,
            limit,
            lines,
        )
        self._units, self._cost, self._slot, self._wall, self._started = units, cost, slot, wall, now
        self.request_id, self._event_id = request_id, event_id
        self._running.add(self)
        self._client.began_fast(self, now)
        record = (grant.stream_stencil if stream else grant.stencil).open(event_id, wall)
        path.open_records[event_id] = record
        path.records.append(record)
        path.asks.append(
            (upstream, b"%b%b\r\ncontent-length: %d\r\n\r\n%b" % (grant.request_head, request_id, size, sent))
        )
        if not path.due:
            path.later()
        return True

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

    # From the engine

    def came(self, data: bytes) -> None:  # noqa: C901 - see the module
        """Bytes of the answer."""
        grant, upstream, path, gateway = self._grant, self._upstream, self._path, self._gateway
        if grant is None or upstream is None:
            return None
        if self._part:
            data, self._part = self._part + data, b""
        spot = grant.spot
        form = spot.form
        if grant.generation != path.generation or gateway.draining or self._ill or self._strikes:
            return self._hand_over(data)
        if self._stream:
            return self._flow_on(grant, upstream, data)
        if form is None:
            return self._hand_over(data)
        at = form.at
        end = data.find(b"\r", at, at + _MOST_DIGITS)
        if not (data.startswith(form.before) and data.startswith(form.behind, end)):
            return self._hand_over(data)
        body, length = data[end + form.skip :], data[at:end]
        if length != b"%d" % len(body):
            if len(body) < MAX_ANSWER and length.isdigit() and int(length) > len(body):
                self._part = data  # more will come
                return None
            return self._hand_over(data)
        try:
            answer = decode_answer(body)
        except UNUSUAL:
            return self._hand_over(data)
        usage, choices = answer.usage, answer.choices
        if usage is None or answer.error is not None or len(choices) != 1:
            return self._hand_over(data)
        encoded = _encode(choices)
        # Quotes within texts are escaped there, so this is the first choice's own message.
        if choices[0].finish_reason == "error" or encoded.find(b'"message":{', 20, 120) < 0:
            return self._hand_over(data)
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        cached = reasoning = 0
        if usage.prompt_tokens_details is not None:
            cached = usage.prompt_tokens_details.cached_tokens or 0
        if usage.completion_tokens_details is not None:
            reasoning = usage.completion_tokens_details.reasoning_tokens or 0
        if prompt is None or completion is None or not (
            0 <= cached <= prompt <= grant.context and 1 <= completion <= self._limit and 0 <= reasoning <= completion
        ):  # fmt: skip
            return self._hand_over(data)  # figures that have to be looked at

        # It is whole, and good
        now = path.now()
        seconds = now - self._started
        request_id = self.request_id
        reply = grant.plain % (
            request_id, int(self._wall), encoded, prompt, completion, prompt + completion, cached, reasoning
        )  # fmt: skip
        reply = _REPLY % (len(reply), request_id, self._lines, int(seconds * 1000), reply)
        self._settle(grant, prompt, cached, completion, reasoning, now, seconds, reply)
        upstream.fast = None
        upstream.resume()
        if len(spot.idle) < MAX_IDLE:
            spot.idle.append(upstream)
        else:
            upstream.discard()
        if self._crowds:
            gateway.places.freed(grant.deployment_id)
        if not path.due:
            path.later()
        return None

    def _flow_on(self, grant: Grant, upstream: Upstream, data: bytes) -> None:
        """The answer is a stream, and here is its beginning."""
        wire = self._client.wire
        if wire is None:
            return
        before = grant.before % (self.request_id, int(self._wall))
        head = _STREAM_HEAD % (self.request_id, self._lines)
        relay = Relay.streaming(before, include_usage=self._shown is True)
        flow = self._flow = FastStream(self, upstream, wire, relay, head, self._started)
        upstream.fast = None
        upstream.continues(flow)
        upstream.received(data)

    def finish(self, counts: Counts, first: float | None, data: bytes) -> bool:
        """The stream has ended well, with these figures: `data` are its last bytes. False if that has to be looked at."""
        grant, upstream, gateway, path = self._grant, self._upstream, self._gateway, self._path
        if grant is None or upstream is None or first is None or grant.generation != path.generation:
            return False
        if gateway.draining or not within(counts, grant.context, self._limit):
            return False
        now = path.now()
        self._settle(grant, counts.prompt, counts.cached, counts.completion, counts.reasoning, now, first, data)
        self._flow = None
        upstream.release()
        if self._crowds:
            gateway.places.freed(grant.deployment_id)
        if not path.due:
            path.later()
        return True

    def _settle(
        self, grant: Grant, prompt: int, cached: int, completion: int, reasoning: int, now: float, first: float, data: bytes
    ) -> None:  # fmt: skip
        """Exactly once for each: what was really used stays used, the rest is free again, and the event is on its way to the disk."""
        path, wall, event_id, stream = self._path, self._wall, self._event_id, self._stream
        units = self._units - prompt - completion
        for pool in grant.tokens:
            if pool.turn == self._slot:
                pool.back += units
                if not path.connected:
                    pool.most += units
            else:
                pool.give_back(self._slot, units, now)
        for pool in grant.seats:
            pool.in_use -= 1
        cost = completion * grant.output_price + (prompt - cached) * grant.input_price + cached * grant.cached_price
        for purse in grant.purses:
            purse.reserved -= self._cost
            purse.spent += cost
        grant.counts.in_flight -= 1
        grant.spot.in_flight -= 1
        lasted, at_first = int((now - self._started) * 1e6 + 0.5), int(first * 1e6 + 0.5)
        stencil = grant.stream_stencil if stream else grant.stencil
        record = stencil.settled(event_id, wall, lasted, at_first, prompt, cached, completion, reasoning)
        del path.open_records[event_id]
        path.records.append(record)
        path.replies.append((self._client, data, record))
        path.ended.append(
            (grant, stream, self.request_id, wall, lasted, at_first, prompt, cached, completion, reasoning)
        )
        self._running.discard(self)
        self._client.ended_fast()
        self._grant = self._upstream = None

    # Becoming an exchange like any other

    def _hand_over(self, data: bytes) -> None:
        upstream = self._upstream
        self.become()
        if upstream is not None:
            upstream.received(data)

    def become(self, *, attached: bool = True) -> Exchange:
        """The exchange that this request would be by now, had it come the long way. `attached`: it still has its connection."""
        grant, upstream, gateway, client = self._grant, self._upstream, self._gateway, self._client
        if grant is None or upstream is None:
            raise RuntimeError("nothing runs here")
        if self._path.due:
            self._path.flush()
        facts = self._facts(grant)
        permit = self._permit(grant, facts)
        exchange = Exchange(gateway, client, facts, permit)
        flow, self._flow = self._flow, None
        upstream.fast = None
        exchange.take_over(grant.replica, upstream if attached else None, flow)
        self._running.discard(self)
        self._running.add(exchange)
        streaming = flow is not None and flow.committed
        client.continues(exchange, self._known.head, grant.caller, facts.request_id, permit.lines, streaming=streaming)
        self._grant = self._upstream = None
        return exchange

    def _facts(self, grant: Grant) -> Facts:
        request_id = self.request_id.decode()
        prepared = Prepared(
            body=self._sent,
            stream=self._stream,
            include_usage=self._shown is True,
            choices=1,
            most_tokens=self._limit,
            path=grant.endpoint.path,
            whole=not self._stream,
        )
        return Facts(
            request_id=f"req_{request_id}",
            event_id=self._event_id.decode(),
            caller=grant.caller,
            route=grant.route,
            endpoint=grant.endpoint,
            prepared=prepared,
            accepted_at=self._wall,
            started=self._started,
            patience=admit.patience_of(self._known.head),
        )

    def _permit(self, grant: Grant, facts: Facts) -> Permit:
        permit = Permit(demand_of(facts), grant.budgets)
        for pool in grant.pools:
            pool.fold()
            permit.takes.append((pool, self._slot, self._units if pool.kind is Kind.TOKENS else 1))
        permit.purses = list(grant.purses)
        permit.lines = self._lines
        return permit

    def not_recorded(self) -> None:
        """The disk has no room for it: nobody is asked."""
        exchange = self.become()
        self._gateway.spool.open_records.pop(exchange.facts.event_id.encode(), None)
        exchange.not_recorded()

    # From the client, the clock and the gateway, as an exchange has them

    @property
    def facts(self) -> Facts:
        if self._grant is None:
            raise RuntimeError("nothing runs here")
        return self._facts(self._grant)

    @property
    def reserved_tokens(self) -> int:
        return self._units

    def client_gone(self) -> None:
        self.become().client_gone()

    def client_full(self) -> None:
        if self._upstream is not None:
            self._upstream.pause()

    def client_drained(self) -> None:
        if self._upstream is not None:
            self._upstream.resume()

    def now(self) -> float:
        return self._path.now()

    def tick(self, now: float) -> None:
        config, flow = self._gateway.config, self._flow
        last_write, first = self._started, None
        if flow is not None:
            flow.moved(now)
            last_write, first = flow.last_write, flow.first
        waited = now - self._started
        silent = first is None and waited > config.first_byte
        if silent or waited > config.total or (self._stream and now - last_write >= config.keepalive):
            self.become().tick(now)

    def cut(self, code: str, sentence: str) -> None:
        self.become().cut(code, sentence)

    def progress(self) -> UsageEvent | None:
        """The event as it would be if the gateway died now; None when nothing has changed since the last."""
        flow, grant = self._flow, self._grant
        if flow is None or grant is None or flow.relay.reader.pieces == flow.told:
            return None
        reader = flow.relay.reader
        flow.told = reader.pieces
        facts, status = self._facts(grant), 200 if flow.committed else 503
        seconds = self._path.now() - self._started
        return event_of(
            facts, self._gateway.config.name, Outcome.INTERRUPTED, status, bill_of(facts, reader), seconds=seconds, first_token=flow.first
        )  # fmt: skip

    def _find(self, model: str) -> Grant | None:
        path, endpoint = self._path, self._known.place.endpoint
        if endpoint is None or self._generation != path.generation:
            return None
        return path.grant(self._caller, endpoint, model)
