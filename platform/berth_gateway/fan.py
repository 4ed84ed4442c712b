"""A request for several choices on an engine that gives one: several upstream requests, put together to one answer and one event.

Each choice is a request of its own with a place of its own, so choices wait, and are spread over replicas, like any other
request. What one of them cannot have, the whole does not have: a failure of any ends all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from berth_gateway import meter
from berth_gateway.account import Facts, event_of
from berth_gateway.aggregate import Aggregate
from berth_gateway.branch import Branch
from berth_gateway.contract import CountedBy, Outcome, UsageEvent
from berth_gateway.errors import Refusal
from berth_gateway.limits import Permit
from berth_gateway.relay import Relay
from berth_gateway.spool import SpoolFull

if TYPE_CHECKING:
    from berth_gateway.exchange import Answering
    from berth_gateway.gateway import Gateway

KEEP_ALIVE = b": keep-alive\n\n"
CLIENT_CLOSED = 499
_EXACTNESS = (CountedBy.ENGINE, CountedBy.ENGINE_RUNNING, CountedBy.ESTIMATE)


def sum_up(bills: list[meter.Bill], choices: int) -> meter.Bill:
    """One bill for all branches, `choices` in a row of each prompt: every prompt once, every completion.

    Of a prompt that several branches read, the reading that found least of it in the cache counts. The sum is as exact as the
    least exact of its parts.
    """
    prompt = cached = completion = reasoning = 0
    for at in range(0, len(bills), choices):
        same = [bill.counts for bill in bills[at : at + choices] if bill.counted_by is not CountedBy.NONE]
        if same:
            most = max(counts.prompt for counts in same)
            prompt += most
            cached += min(min(counts.cached for counts in same), most)
            completion += sum(counts.completion for counts in same)
            reasoning += sum(counts.reasoning for counts in same)
    found = {bill.counted_by for bill in bills}
    counted_by = next((each for each in reversed(_EXACTNESS) if each in found), CountedBy.NONE)
    counts = meter.Counts(prompt, cached, completion, reasoning)
    return meter.Bill(counts, counted_by, any(bill.breach for bill in bills))


class Fan:
    """Runs the branches of one request until one of: all whole, refused, broken, too late, left, cut. As an exchange does."""

    def __init__(self, gateway: Gateway, client: Answering, facts: Facts, permit: Permit) -> None:
        self.facts = facts
        self.permit = permit
        self._gateway = gateway
        self._client = client
        self._relay = Relay(facts)  # for what surrounds the choices
        self._aggregate = None if facts.prepared.stream else Aggregate(chat=facts.endpoint.chat)
        self._branches = [
            Branch(gateway, self, msgspec.structs.replace(facts, prepared=each), permit, number)
            for number, each in enumerate(facts.prepared.branches)
        ]
        self._accepted = self._settled = self._committed = False
        self._first_token: float | None = None
        self._last_write = facts.started
        self._progress_at = 0

    def start(self) -> None:
        """Raises Refusal if too many wait; then nothing is begun."""
        entered = 0
        try:
            for branch in self._branches:
                branch.enter()
                entered += 1
        except Refusal:
            for branch in self._branches[:entered]:
                branch.leave()
            self._gateway.gate.cancel(self.permit)
            raise
        self._gateway.exchanges.add(self)
        for branch in self._branches:
            if not self._settled:
                branch.start()

    # From the branches

    def put_on_record(self) -> bool:
        if self._settled:
            return False
        if self._accepted:
            return True
        try:
            self._gateway.spool.accept(self._account(Outcome.INTERRUPTED, 503, meter.NOTHING))
        except SpoolFull:
            self._gateway.log.error("spool_full", request_id=self.facts.request_id)
            self.failed("service_unavailable", "The gateway cannot record usage right now. Try again shortly.")
            return False
        self._accepted = True
        return True

    def grown(self, branch: Branch, choices: bytes) -> None:
        if self._settled:
            return
        if self._first_token is None and branch.reader.pieces:
            self._first_token = self._gateway.now() - self.facts.started
        if self._aggregate is not None:
            if branch.reader.pieces or branch.reader.complete:
                self._aggregate.add(choices)
            return
        piece = b"%b%b}\n\n" % (self._relay.before, choices)
        if branch.reader.pieces or branch.reader.complete:
            self._write(b"".join([*branch.held, piece]))
            branch.held.clear()
        else:
            branch.held.append(piece)

    def whole(self, branch: Branch) -> None:
        if self._settled or not all(each.ended_well for each in self._branches):
            return
        counts = self._settle(Outcome.OK, 200).counts
        if self._aggregate is None:
            self._client.stream(self._relay.last_events(counts), last=True)
            return
        answer = self._aggregate.answer(
            id_=self._relay.answer_id,
            object_=self.facts.endpoint.answer_object,
            created=int(self.facts.accepted_at),
            model=self.facts.route.name,
            usage=counts,
        )
        self._client.answer(answer)

    def failed(self, code: str, sentence: str, retry_after: int | None = None) -> None:
        self._fail(code, sentence, Outcome.UPSTREAM_ERROR, retry_after)

    def refused(self, refusal: Refusal) -> None:
        if not self._settled:
            self._settle(Outcome.REJECTED, refusal.status)
            self._end_with(refusal)

    # The end

    def _fail(self, code: str, sentence: str, outcome: Outcome, retry_after: int | None = None) -> None:
        if self._settled:
            return
        param = "model" if code in ("model_loading", "deployment_paused") else None
        refusal = Refusal(
            code, f"{sentence} Request id: {self.facts.request_id}.", param=param, retry_after=retry_after
        )
        self._settle(outcome, 200 if self._committed else refusal.status)
        self._end_with(refusal)

    def _end_with(self, refusal: Refusal) -> None:
        if self._committed:
            self._client.stream(self._relay.error_event(refusal), last=True)
        else:
            self._client.refuse(refusal)

    def _settle(self, outcome: Outcome, status: int) -> meter.Bill:
        bill = meter.NOTHING if outcome is Outcome.REJECTED else self._bill()
        self._settled = True
        for branch in self._branches:
            if not branch.ended_well:
                branch.leave()
        if self._accepted:
            self._gateway.settled(self, self._account(outcome, status, bill), breach=bill.breach)
        else:
            self._gateway.dropped(self)
        return bill

    def _write(self, data: bytes) -> None:
        self._committed = True
        self._last_write = self._gateway.now()
        self._client.stream(data, last=False)

    # From the client, the clock and the gateway

    def client_gone(self) -> None:
        if not self._settled:
            self._settle(Outcome.CLIENT_CLOSED, CLIENT_CLOSED)

    def client_full(self) -> None:
        for branch in self._branches:
            branch.pause()

    def client_drained(self) -> None:
        for branch in self._branches:
            branch.resume()

    def tick(self, now: float) -> None:
        config = self._gateway.config
        silent = any(
            not each.reader.pieces and each.place is not None and each.place.sent_at is not None
            and now - each.place.sent_at > config.first_byte
            for each in self._branches if not each.ended_well
        )  # fmt: skip
        if silent or now - self.facts.started > config.total:
            self._fail("request_timeout", "The model did not answer in time.", Outcome.TIMEOUT)
        elif self.facts.prepared.stream and now - self._last_write >= config.keepalive:
            self._write(KEEP_ALIVE)

    def cut(self, code: str, sentence: str) -> None:
        self._gateway.telemetry.cut.add(code)
        self._fail(code, sentence, Outcome.INTERRUPTED)

    @property
    def waited(self) -> tuple[float | None, float | None]:
        """When it asked for replicas, and when the first of its branches went to one, on the loop's clock."""
        places = [branch.place for branch in self._branches if branch.place is not None]
        sent = [place.sent_at for place in places if place.sent_at is not None]
        return min((place.since for place in places), default=None), min(sent, default=None)

    # Accounts

    def progress(self) -> UsageEvent | None:
        pieces = sum(branch.reader.pieces for branch in self._branches)
        if self._settled or not self._accepted or pieces == self._progress_at:
            return None
        self._progress_at = pieces
        return self._account(Outcome.INTERRUPTED, 200 if self._committed else 503, self._bill())

    def _bill(self) -> meter.Bill:
        prepared = self.facts.prepared
        return sum_up([branch.bill() for branch in self._branches], prepared.choices // prepared.prompts)

    def _account(self, outcome: Outcome, status: int, bill: meter.Bill) -> UsageEvent:
        seconds = self._gateway.now() - self.facts.started
        event = event_of(
            self.facts, self._gateway.config.name, outcome, status, bill, seconds=seconds, first_token=self._first_token
        )
        revision = next((each.replica.revision for each in self._branches if each.replica is not None), None)
        return event if revision in (None, event.revision) else msgspec.structs.replace(event, revision=revision)
