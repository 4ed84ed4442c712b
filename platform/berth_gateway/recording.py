"""Inference records: beside the answer on its way to the client, bounded, and never in its way. What does not fit is dropped.

Nothing is kept unless the snapshot says so. What is kept waits in memory until it is sealed, in a thread, and leaves sealed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from berth_gateway.account import Facts
from berth_gateway.admit import Caller
from berth_gateway.contract import (
    RECORD_FORMAT,
    Outcome,
    RecordContent,
    Recording,
    Route,
    SealedRecord,
    UsageEvent,
    box_context,
    record_mac,
)
from berth_gateway.errors import Refusal
from berth_gateway.sealing import seal

if TYPE_CHECKING:
    from berth_gateway.exchange import Answering

MOST_BYTES = 32 * 1024 * 1024  # of requests and answers that are captured or wait, in one process

_pack = msgspec.msgpack.Encoder().encode


def wish_of(caller: Caller, route: Route) -> Recording | None:
    """How requests are to be kept: the organisation says so, and neither the deployment nor the key says no."""
    wish = caller.org.recording
    return wish if wish is not None and caller.key.recorded and route.recorded else None


def recording_of(facts: Facts) -> Recording | None:
    return wish_of(facts.caller, facts.route)


class Captured(Struct, frozen=True):
    """A request and its answer, whole as far as the bound goes."""

    facts: Facts
    wish: Recording
    content: RecordContent

    @property
    def size(self) -> int:
        return len(self.content.request) + len(self.content.response)


def sealed(captured: Captured, gateway: str, usage_key: bytes) -> SealedRecord:
    """The record as it may leave the process."""
    facts, wish = captured.facts, captured.wish
    org_id = facts.caller.org.org_id
    record = SealedRecord(
        format=RECORD_FORMAT,
        gateway=gateway,
        event_id=facts.event_id,
        org_id=org_id,
        deployment_id=facts.route.deployment_id,
        api_key_id=facts.caller.key.key_id,
        sealing_key_id=wish.key_id,
        accepted_at=facts.accepted_at,
        box=seal(wish.public_key, wish.key_id, box_context(facts.event_id, org_id), _pack(captured.content)),
    )
    return msgspec.structs.replace(record, mac=record_mac(usage_key, record))


class Records:
    """What is being captured and what waits to be sealed. `dropped` counts by reason."""

    def __init__(self, now: Callable[[], float], dropped: Callable[[str], None]) -> None:
        self._now = now
        self.dropped = dropped
        self.open: dict[str, Recorder] = {}  # by event id
        self.waiting: deque[Captured] = deque()
        self.held = 0  # bytes
        self.ships = False  # somebody takes them away; alone, nothing is captured
        self._rates: dict[str, tuple[float, int]] = {}  # since when, and how many, by organisation

    def around(self, client: Answering, facts: Facts, body: bytes) -> Answering:
        """The client's side, with a recorder before it where this request is to be kept."""
        wish = recording_of(facts)
        if wish is None or not self.ships:
            return client
        if not self._within_rate(facts.caller.org.org_id, wish.per_minute):
            self.dropped("rate")
            return client
        recorder = Recorder(self, client, facts, wish, body)
        self.open[facts.event_id] = recorder
        return recorder

    def _within_rate(self, org_id: str, most: int) -> bool:
        now = self._now()
        since, count = self._rates.get(org_id, (now, 0))
        if now - since >= 60:
            since, count = now, 0
        self._rates[org_id] = (since, count + 1)
        return count < most

    def hold(self, size: int) -> bool:
        """Whether there is room for so many bytes more; if so they are taken."""
        if self.held + size > MOST_BYTES:
            return False
        self.held += size
        return True

    def settled(self, event: UsageEvent) -> None:
        """A request was accounted for: its record may be kept once the last byte is out."""
        recorder = self.open.get(event.event_id)
        if recorder is not None:
            recorder.accepted = True
            if event.outcome is Outcome.CLIENT_CLOSED:
                recorder.finish()

    def forget(self, event_id: str) -> None:
        """A request that no engine has seen."""
        recorder = self.open.get(event_id)
        if recorder is not None:
            recorder.lose()

    def take(self, most: int) -> list[Captured]:
        """Those that wait longest. They are no longer counted as held."""
        taken = [self.waiting.popleft() for _ in range(min(most, len(self.waiting)))]
        self.held -= sum(each.size for each in taken)
        return taken


class Recorder:
    """Stands between an exchange and its client, passes everything on at once, and remembers it."""

    def __init__(self, records: Records, client: Answering, facts: Facts, wish: Recording, body: bytes) -> None:
        self._records = records
        self._client = client
        self._facts = facts
        self._wish = wish
        self._request = body[: wish.most_bytes]
        self._request_cut = len(body) > wish.most_bytes
        self._answer = bytearray()
        self._answer_cut = False
        self._lost = not records.hold(len(self._request))
        self._held = 0 if self._lost else len(self._request)
        self._ended = False
        self.accepted = False

    # What an exchange asks of its client

    def refuse(self, refusal: Refusal) -> None:
        self._remember(refusal.body())
        self._client.refuse(refusal)
        self.finish()

    def answer(self, body: bytes) -> None:
        self._remember(body)
        self._client.answer(body)
        self.finish()

    def stream(self, data: bytes, *, last: bool) -> None:
        self._remember(data)
        self._client.stream(data, last=last)
        if last:
            self.finish()

    def chunk_writer(self) -> Callable[[bytes], None] | None:
        return None  # what goes that way would not be seen

    # What is kept

    def _remember(self, data: bytes) -> None:
        room = self._wish.most_bytes - len(self._answer)
        if len(data) > room:
            self._answer_cut = True
            data = data[:room]
        if self._lost or self._ended or not data:
            return
        if not self._records.hold(len(data)):
            self._lost = True
            return
        self._held += len(data)
        self._answer += data

    def finish(self) -> None:
        """The request has ended, one way or the other."""
        records = self._records
        if self._ended:
            return
        self._ended = True
        records.open.pop(self._facts.event_id, None)
        if self._lost or not self.accepted:
            records.held -= self._held
            if self._lost:
                records.dropped("memory")
            return
        content = RecordContent(
            format=RECORD_FORMAT,
            endpoint=self._facts.endpoint.name,
            request=self._request,
            response=bytes(self._answer),
            request_cut=self._request_cut,
            response_cut=self._answer_cut,
        )
        records.waiting.append(Captured(self._facts, self._wish, content))

    def lose(self) -> None:
        self.accepted = False
        self.finish()
