"""The answer to a usual request: in one piece, or the beginning of a stream; and what the request is accounted for."""

from __future__ import annotations

import msgspec

from berth_gateway.answer_form import PLAIN_USAGE, USAGE
from berth_gateway.answer_form import learn as learn_answer
from berth_gateway.choices import decode_answer
from berth_gateway.chunks import FAILED
from berth_gateway.express import Express
from berth_gateway.fast_path import MOST_TOGETHER
from berth_gateway.fast_request import UsualRequest
from berth_gateway.fast_stream import FastStream, within
from berth_gateway.flat_stream import FlatStream
from berth_gateway.grant import Grant
from berth_gateway.head import HeadError
from berth_gateway.meter import Counts
from berth_gateway.records import event_id_of
from berth_gateway.relay import Relay
from berth_gateway.route import MAX_IDLE, Spot
from berth_gateway.stream_form import learn
from berth_gateway.target import Target
from berth_gateway.upstream import Upstream
from berth_gateway.usual import UNUSUAL
from berth_gateway.window import WINDOW_SLOTS

MAX_ANSWER = 1024 * 1024  # bytes of an answer in pieces; a longer one is no usual one
_join = b"".join
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\nx-accel-buffering: no\r\nx-request-id: req_%b\r\n%bopenai-processing-ms: %%d\r\n\r\n"
)
_STREAM_HEAD_AT = _STREAM_HEAD.replace(b"%%d", b"%d")
_encode = msgspec.json.Encoder().encode


class UsualAnswer(UsualRequest):
    """Takes in what the engine sends."""

    __slots__ = ()

    def came(self, data: bytes) -> None:
        """Bytes of the answer. A plain one waits for those that come with it."""
        upstream = self._upstream
        if self._stream or upstream is None:
            self.take_in(data)
            return
        path = self._path
        path.answers.append((self, upstream, data))
        if not path.due:
            path.later()
        elif len(path.answers) >= MOST_TOGETHER:
            path.flush()

    def take_in(self, data: bytes) -> None:  # noqa: C901 - see `fast`
        """Its turn has come."""
        grant, target, upstream, path, gateway = self._grant, self._target, self._upstream, self._path, self._gateway
        if grant is None or target is None or upstream is None:
            return None
        if self._stream and (known := target.spot.stream) is not None and data == known.head and not self._part:
            self._part = data  # nothing has to be done before more comes
            return None
        if self._part:
            data, self._part = self._part + data, b""
        spot = target.spot
        form = spot.form
        if grant.generation != path.generation or path.draining or self._ill or self._strikes:
            return self._hand_over(data)
        if self._stream:
            return self._flow_on(grant, spot, upstream, data)
        if form is None:
            return self._hand_over(data)
        if len(data) == form.size and data[: form.head_size] == form.head:
            body: bytes | None = data[form.head_size :]
        else:
            body = form.body(data)
        if body is None:
            if form.is_begun(data, MAX_ANSWER):
                self._part = data  # more will come
                return None
            return self._hand_over(data)
        try:
            if not body.isascii():
                body.decode()  # texts go on as they are
            answer = decode_answer(body)
        except (*UNUSUAL, UnicodeDecodeError):
            return self._hand_over(data)
        usage, choices = answer.usage, answer.choices
        if usage is None or answer.error is not None or len(choices) != 1:
            return self._hand_over(data)
        encoded = _encode(choices)
        # Quotes within texts are escaped there, so this is the first choice's own message.
        if choices[0].finish_reason in FAILED or b'"message":{' not in encoded[20:120]:
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
        if cached or reasoning:
            tail = USAGE % (prompt, completion, prompt + completion, cached, reasoning)
        else:
            tail = PLAIN_USAGE % (prompt, completion, prompt + completion)
        size, told = grant.reply_size + len(encoded) + len(tail), self._told
        if told is None:
            begin = grant.reply % (size, request_id, self._lines, int(seconds * 1000), request_id, self._created)
        else:
            left, tokens = told
            begin = grant.reply_of(self._form_told) % (
                size, request_id, left, tokens, int(seconds * 1000), request_id, self._created
            )  # fmt: skip
        reply = _join((begin, encoded, tail))
        spot.unlike += 1
        if not spot.unlike & (spot.unlike - 1):
            self._learn(spot, body)
        self._settle(grant, target, prompt, cached, completion, reasoning, now, seconds, reply)
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

    def _learn(self, spot: Spot, body: bytes) -> None:
        """A good answer was of another form than is known."""
        form, known = learn_answer(body), spot.answer
        if form is not None:
            if known is not None:
                form.other, known.other = known, form
            spot.answer = form

    def _flow_on(self, grant: Grant, spot: Spot, upstream: Upstream, data: bytes) -> None:
        """The answer is a stream, and here is its beginning."""
        wire = self._client.wire
        if wire is None:
            return
        before = grant.before % (self.request_id, int(self._wall))
        form = spot.stream
        if form is not None:
            head = form.head
            if data[: len(head)] != head:
                try:
                    head = upstream.stream_head(data)
                except HeadError:
                    head = b""
                if head:
                    form.head = head
            if head:
                flat = self._flow = upstream.fast = FlatStream(self, upstream, wire, form, before, self._started)
                flat.came(data[len(head) :])
                return
        relay = Relay.streaming(before, include_usage=self.shows)
        relay.lesson = self.lesson()
        flow = self._flow = FastStream(self, upstream, wire, relay, self.stream_head(None), self._started)
        upstream.fast = None
        upstream.continues(flow)
        upstream.received(data)

    @property
    def shows(self) -> bool:
        """Whether a client that streams sees the usage."""
        return self._shown is True

    def stream_head(self, seconds: float | None) -> bytes:
        """The head of a stream that took so long to begin; None: with `%d` in the place of the milliseconds."""
        if seconds is None:
            return _STREAM_HEAD % (self.request_id, self._limit_lines())
        return _STREAM_HEAD_AT % (self.request_id, self._limit_lines(), int(seconds * 1000))

    def lesson(self) -> list[bytes] | None:
        """Where to note the events of a stream that is of another form than is known, to learn from them; each second time as rarely."""
        target = self._target
        if target is None:
            return None
        spot = target.spot
        spot.misses += 1
        return None if spot.misses & (spot.misses - 1) else []

    def teach(self, events: list[bytes], express: Express | None) -> None:
        """A stream whose events were noted has ended well."""
        target, upstream = self._target, self._upstream
        if target is not None and upstream is not None:
            form = learn(upstream.last_head, events, express)
            if form is not None:
                target.spot.stream, target.spot.misses = form, 0

    def thaw(self) -> Upstream:
        """A stream of a known form goes on as one that is read."""
        flow, upstream = self._flow, self._upstream
        if not isinstance(flow, FlatStream) or upstream is None:
            raise RuntimeError("nothing flows here")
        self._flow = flow.thawed()
        return upstream

    def finish(self, counts: Counts, first: float | None, data: bytes, *, whole: bool | None = None) -> bool:
        """The stream has ended well, with these figures: `data` are its last bytes. False if that has to be looked at. `whole`: of a
        known form, whether the body's end has come too."""
        grant, target, upstream, gateway, path = self._grant, self._target, self._upstream, self._gateway, self._path
        if grant is None or target is None or upstream is None or first is None or grant.generation != path.generation:
            return False
        if path.draining or self._ill or not within(counts, grant.context, self._limit):
            return False
        now = path.now()
        self._settle(grant, target, counts.prompt, counts.cached, counts.completion, counts.reasoning, now, first, data)
        flow, self._flow = self._flow, None
        if flow is not None and flow.told:
            path.open_records.pop(event_id_of(self.request_id).encode(), None)  # what it had come to
        if whole:
            upstream.rests()
        else:
            if whole is not None:
                upstream.flows_on(None)
            upstream.release()
        if self._crowds:
            gateway.places.freed(grant.deployment_id)
        if not path.due:
            path.later()
        return True

    def _settle(
        self, grant: Grant, target: Target, prompt: int, cached: int, completion: int, reasoning: int, now: float, first: float, data: bytes
    ) -> None:  # fmt: skip
        """Exactly once for each: what was really used stays used, the rest is free again, and the event is on its way to the disk."""
        path, till = self._path, self._till
        units = self._units - prompt - completion
        cost = completion * grant.output_price + (prompt - cached) * grant.input_price + cached * grant.cached_price
        if till.grant is grant and till.slot - self._slot < WINDOW_SLOTS - 1:
            if till.slot == self._slot:
                till.back += units
            else:
                till.late[self._slot] = till.late.get(self._slot, 0) + units
            till.returned += units
            till.ended += 1
            till.freed += self._cost
            till.spent += cost
        else:
            self._settle_apart(grant, units, cost, now)
        target.spot.in_flight -= 1
        lasted = int((now - self._started) * 1e6 + 0.5)
        if self._stream:
            stencil, at_first = target.stream_stencil, int(first * 1e6 + 0.5)
        else:
            stencil, at_first = target.stencil, lasted
        if not stencil.opened and not stencil.ended:
            path.touched.append(stencil)
        stencil.ended.append((self.request_id, self._wall, lasted, at_first, prompt, cached, completion, reasoning))
        path.replies.append((self._client, data))
        self._running.discard(self)
        self._grant = self._target = self._upstream = None

    def _settle_apart(self, grant: Grant, units: int, cost: int, now: float) -> None:
        """Another grant's requests are counted together at the moment."""
        path = self._path
        self._till.close()
        for pool in grant.tokens:
            if pool.turn == self._slot:
                pool.back += units
                if not path.connected:
                    pool.most += units
            else:
                pool.give_back(self._slot, units, now)
        for pool in grant.seats:
            pool.in_use -= 1
        for purse in grant.purses:
            purse._reserved -= self._cost  # the till is closed
            purse._spent += cost
        grant.counts.in_flight -= 1
