"""One accepted request, from its admission to its last byte and its usage event. Knows no sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth_gateway import meter
from berth_gateway.chunks import EngineFault
from berth_gateway.contract import Outcome, Replica
from berth_gateway.engine_errors import read_refusal
from berth_gateway.errors import Refusal
from berth_gateway.exchange_retry import Retrying
from berth_gateway.exchange_state import Answering
from berth_gateway.express import Express
from berth_gateway.head import ResponseHead, write_request
from berth_gateway.relay import Relay, Relayed
from berth_gateway.route import Address, address
from berth_gateway.spool import SpoolFull
from berth_gateway.upstream import Upstream

if TYPE_CHECKING:
    from berth_gateway.fast_stream import FastStream

__all__ = ["Answering", "Exchange"]

MAX_ERROR_BODY = 64 * 1024
KEEP_ALIVE = b": keep-alive\n\n"
CLIENT_CLOSED = 499


class Exchange(Retrying):
    """Sends a request to a replica and relays what comes, until one of: done, refused, broken, too late, left, cut."""

    # Going upstream

    def start(self) -> None:
        """Raises Refusal if too many wait; then nothing is begun."""
        try:
            self._place = self._gateway.places.enter(self)
        except Refusal:
            self._gateway.gate.cancel(self.permit)
            raise
        self._gateway.exchanges.add(self)
        self._gateway.places.seek(self._place)

    def start_with(self, replica: Replica) -> None:
        """As `start`, for a request that has found its replica already (`fast`)."""
        place = self._place = self._gateway.places.found(self)
        self._gateway.exchanges.add(self)
        self._gateway.places.take(place, self.facts.route, replica)

    def take_over(self, replica: Replica, upstream: Upstream | None, flow: FastStream | None) -> None:
        """Goes on with a request that was accepted and sent a shorter way (`fast`), and with its answer if that flows already."""
        where = address(replica)
        self._accepted, self._replica, self._sent_to, self._upstream = True, replica, where, upstream
        self._place = self._gateway.places.took_over(self, where, self.facts.started)
        if flow is None:
            if upstream is not None:
                upstream.continues(self)
            return
        self._relay, self._express, self._held = flow.relay, flow.express, flow.held
        self._committed, self._first_token, self._status = flow.committed, flow.first, flow.status
        self._last_write, self._progress_at, self._moved_at = flow.last_write, flow.told, flow.looked_at
        if upstream is not None:
            upstream.hand_to(self)

    def not_recorded(self) -> None:
        """The spool has no room for it after all: no engine has seen it."""
        self._accepted = False
        self._gateway.log.error("spool_full", request_id=self.facts.request_id)
        self._fail("service_unavailable", "The gateway cannot record usage right now. Try again shortly.")

    def placed(self, replica: Replica) -> None:
        where = address(replica)
        self._replica = replica
        pooled = None if self._fresh else self._gateway.router.take(where)
        self._upstream = pooled if isinstance(pooled, Upstream) else Upstream(self._gateway, where)
        self._upstream.ask(self, self._message)

    def _message(self) -> bytes:
        """The request, now that there is somebody to send it to; nothing, if it cannot be put on record."""
        facts, replica = self.facts, self._replica
        if replica is None or not (self._accepted or self._accept()):
            return b""
        self._sent_to = address(replica)
        return write_request(
            facts.prepared.path,
            replica.host,
            replica.port,
            replica.secret,
            facts.request_id,
            facts.prepared.body,
            facts.prepared.content_type,
            "" if facts.trace is None else facts.trace.outgoing,
        )

    def _accept(self) -> bool:
        """From here on it is a request that was accepted: on record, and settled exactly once."""
        try:
            self._gateway.spool.accept(self._account(Outcome.INTERRUPTED, 503, meter.NOTHING))
        except SpoolFull:
            self.not_recorded()
            return False
        self._accepted = True
        return True

    def turned_away(self, code: str, sentence: str, retry_after: int | None) -> None:
        self._fail(code, sentence, retry_after=retry_after)

    # From the replica

    def answered(self, head: ResponseHead) -> None:
        self._status = head.status
        if head.status < 500 and self._where is not None:
            self._gateway.router.health.answered(self._where)
            self._gateway.suspects.answered(self._where)
        if head.status == 200 and not head.content_type.startswith(self._relay.media):
            self._status = 500  # not a stream although one was asked for

    def payload(self, data: bytes) -> None:
        if self._status != 200:
            if len(self._error) < MAX_ERROR_BODY:
                self._error += data[:MAX_ERROR_BODY]
            return
        self.pass_on(self._relay.feed(data))

    def pass_on(self, relayed: Relayed) -> None:
        reader, out = self._relay.reader, relayed.out
        if self._first_token is None and reader.pieces:
            self._first_token = self._gateway.now() - self.facts.started
        if relayed.done and not relayed.fault:
            self._complete(out)
            return
        if out:
            if self._committed and not self._held:
                self._write(b"".join(out))
            else:
                self._held += out
                if reader.pieces or reader.complete:
                    self._write_held()
        if relayed.fault:
            self._engine_fault()
        elif reader.has_learned and self._upstream is not None and not self._held:
            self._speed_up(self._upstream)

    def _speed_up(self, upstream: Upstream) -> None:
        """From here on, chunks that look like those before take a shorter way."""
        relay = self._relay
        if not isinstance(relay, Relay):
            upstream.short_cut = self._take_whole_chunk
            return
        if self._express is None and relay.flows:
            write = self._client.chunk_writer()
            self._express = Express(relay.reader, relay.before, write) if write is not None else None
        if self._express is None:
            upstream.short_cut = self._take_whole_chunk
        elif relay.flows and not relay.reader.has_finished:
            upstream.express = self._express

    def _take_whole_chunk(self, data: bytes) -> bool:
        """The way of nearly every chunk of an answer that flows: the same as `payload`, in fewer steps."""
        try:
            out = self._relay.feed_framed(data)
        except EngineFault:
            self._engine_fault()
            return True
        if out is None:
            return False
        if out:
            self._last_write = self._gateway.now()
            self._client.stream(out, last=False)
        return True

    def ended(self) -> None:
        """The answer is whole as far as HTTP goes."""
        where = self._where
        if self._status >= 500 or self._status == 429:
            self._replica_failed(where)
        self._leave_upstream(abort=False)
        if self._status != 200:
            self._refused_by_engine(where)
            return
        self.pass_on(self._relay.finish())
        if self._settled:
            return
        if self._relay.reader.complete:
            self._complete([])  # everything but [DONE] came
        else:
            self._engine_fault()

    def broken(self, *, answered: bool, reused: bool) -> None:
        where, stale = self._where, reused and not answered and not self._retried_stale
        if not stale:
            self._replica_failed(where)
            if where is not None and self._sent_to == where:
                self._gateway.engine_died(self.facts, where)
        self._leave_upstream(abort=True)
        if self._may_retry():
            if stale:
                # The engine closed an idle connection just as it was used: the request has not been looked at.
                self._retried_stale = True
                self._gateway.telemetry.retries.add("stale")
                self._again(fresh=True)
                return
            if self._retry_elsewhere(where, "broken" if answered else "unreachable"):
                return
        code = "upstream_error" if answered else "upstream_unavailable"
        self._fail(code, "The replica that served this request stopped answering.")

    def _refused_by_engine(self, where: Address | None) -> None:
        """An error status. What the engine said is only looked at for its class."""
        if self._status in (429, 503):
            if not (self._may_retry() and self._retry_elsewhere(where, "busy")):
                self._fail("overloaded", f"{self.facts.route.name} is busy.")
            return
        refusal = read_refusal(self._status, self._error, self.facts.endpoint.prompt_field)
        if refusal is None:
            self._engine_fault()
            return
        self._settle(Outcome.REJECTED, refusal.status)
        self._end_with(refusal)

    # To the client

    def _write_held(self) -> None:
        held = b"".join(self._held)
        self._held.clear()
        self._write(held)

    def _write(self, data: bytes) -> None:
        self._committed = True
        self._last_write = self._gateway.now()
        self._client.stream(data, last=False)

    def _complete(self, out: list[bytes]) -> None:
        bill = self._settle(Outcome.OK, 200)
        self._leave_upstream(abort=False)
        whole = self._relay.answer(bill.counts)
        if whole is not None:
            self._client.answer(whole)
            return
        pieces = [*self._held, *out, self._relay.last_events(bill.counts)]
        self._held.clear()
        self._client.stream(b"".join(pieces), last=True)

    def _engine_fault(self) -> None:
        self._fail("upstream_error", "The replica that served this request failed.")

    def _fail(
        self, code: str, sentence: str, outcome: Outcome = Outcome.UPSTREAM_ERROR, retry_after: int | None = None
    ) -> None:
        if self._settled:
            return
        param = "model" if code in ("model_loading", "deployment_paused") else None
        sentence = f"{sentence} Request id: {self.facts.request_id}."
        refusal = Refusal(code, sentence, param=param, retry_after=retry_after)
        self._settle(outcome, 200 if self._committed else refusal.status)
        self._leave_upstream(abort=True)
        self._end_with(refusal)

    def _end_with(self, refusal: Refusal) -> None:
        """A true status while the head is held; an error event without [DONE] once the stream has begun."""
        if not self._committed:
            self._client.refuse(refusal)
            return
        event = self._relay.error_event(refusal)
        self._client.stream(b"".join(self._held) + event, last=True)

    # From the client, the clock and the gateway

    def client_gone(self) -> None:
        """The client left: the engine must stop at once, and what was produced is accounted for."""
        if not self._settled:
            self._settle(Outcome.CLIENT_CLOSED, CLIENT_CLOSED)
            self._leave_upstream(abort=True)

    def client_full(self) -> None:
        if self._upstream is not None:
            self._upstream.pause()

    def client_drained(self) -> None:
        if self._upstream is not None:
            self._upstream.resume()

    def tick(self, now: float) -> None:
        if self._express is not None and self._relay.reader.pieces != self._moved_at:
            self._moved_at, self._last_write = self._relay.reader.pieces, now
        config = self._gateway.config
        sent_at = None if self._place is None else self._place.sent_at
        silent = self._first_token is None and sent_at is not None and now - sent_at > config.first_byte
        if silent or now - self.facts.started > config.total:
            self._fail("request_timeout", "The model did not answer in time.", Outcome.TIMEOUT)
        elif self.facts.prepared.stream and now - self._last_write >= config.keepalive:
            self._write(KEEP_ALIVE)

    def cut(self, code: str, sentence: str) -> None:
        """The gateway ends it: the key was revoked, or the gateway stops."""
        self._gateway.telemetry.cut.add(code)
        self._fail(code, sentence, Outcome.INTERRUPTED)
