"""One of the upstream requests that make an answer with several choices together. Knows no sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from berth_gateway import meter
from berth_gateway.account import Facts, prompt_estimate
from berth_gateway.chunks import ChunkReader, EngineFault
from berth_gateway.contract import Replica
from berth_gateway.engine_errors import read_refusal
from berth_gateway.head import ResponseHead, write_request
from berth_gateway.limits import Permit
from berth_gateway.place import Place
from berth_gateway.relay import EVENT_STREAM
from berth_gateway.route import Address, address
from berth_gateway.sse import EventSplitter, EventTooLarge
from berth_gateway.upstream import Upstream

if TYPE_CHECKING:
    from berth_gateway.errors import Refusal
    from berth_gateway.gateway import Gateway

MAX_ERROR_BODY = 64 * 1024


class NumberedReader(ChunkReader):
    """Reads an answer's only choice and gives it its number among the request's. A short cut would leave the engine's number in,
    so it never learns one."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def relayed(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**super().relayed(choice), "index": self._number}

    def _learn(self, data: bytes, choices: list[dict[str, Any]]) -> None:
        return


class Joint(Protocol):
    """What puts the branches together."""

    def put_on_record(self) -> bool:
        """Called before a branch is sent; whether it may be."""

    def grown(self, branch: Branch, choices: bytes) -> None:
        """A piece of it came: a JSON list with its choice. Raises EngineFault."""

    def whole(self, branch: Branch) -> None:
        """It has ended as it should."""

    def failed(self, code: str, sentence: str, retry_after: int | None = None) -> None:
        """It cannot be had; the others are then for nothing."""

    def refused(self, refusal: Refusal) -> None:
        """The engine found the request wrong."""


class Branch:
    """Finds a replica, sends its request, and reads its choice; tries once more where nothing has been produced."""

    def __init__(self, gateway: Gateway, joint: Joint, facts: Facts, permit: Permit, number: int) -> None:
        """`facts` are the request's own, with what this branch sends as `prepared`."""
        self.facts = facts
        self.permit = permit
        self.reader = NumberedReader(number)
        self.ended_well = False
        self.held: list[bytes] = []  # what came before its first content
        self.place: Place | None = None
        self.replica: Replica | None = None  # the last it was sent to
        self._gateway = gateway
        self._joint = joint
        self._number = number
        self._splitter = EventSplitter()
        self._upstream: Upstream | None = None
        self._fresh = self._retried_stale = self._left = False
        self._sent_to: Address | None = None
        self._status = 0
        self._error = b""

    # Going upstream

    def enter(self) -> None:
        """Raises Refusal if too many wait."""
        self.place = self._gateway.places.enter(self)

    def start(self) -> None:
        if self.place is not None and not self._left:
            self._gateway.places.seek(self.place)

    def placed(self, replica: Replica) -> None:
        where, self.replica = address(replica), replica
        pooled = None if self._fresh else self._gateway.router.take(where)
        self._upstream = pooled if isinstance(pooled, Upstream) else Upstream(self._gateway, where)
        self._upstream.ask(self, self._message)

    def _message(self) -> bytes:
        replica, prepared = self.replica, self.facts.prepared
        if replica is None or self._left or not self._joint.put_on_record():
            return b""
        self._sent_to = address(replica)
        return write_request(
            prepared.path,
            replica.host,
            replica.port,
            replica.secret,
            self.facts.request_id,
            prepared.body,
            prepared.content_type,
            "" if self.facts.trace is None else self.facts.trace.outgoing,
        )

    def turned_away(self, code: str, sentence: str, retry_after: int | None) -> None:
        self._joint.failed(code, sentence, retry_after)

    def leave(self, *, abort: bool = True) -> None:
        """It is wanted no more, or has all it wanted."""
        self._left = True
        self._leave_upstream(abort=abort)

    def _leave_upstream(self, *, abort: bool) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            if abort:
                upstream.abort()
            else:
                upstream.release()
        if self.place is not None:
            self._gateway.places.leave(self.place)

    def pause(self) -> None:
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        if self._upstream is not None:
            self._upstream.resume()

    # From the replica

    @property
    def _where(self) -> Address | None:
        return None if self.place is None else self.place.where

    def answered(self, head: ResponseHead) -> None:
        self._status = head.status
        if head.status < 500 and self._where is not None:
            self._gateway.router.health.answered(self._where)
            self._gateway.suspects.answered(self._where)
        if head.status == 200 and not head.content_type.startswith(EVENT_STREAM):
            self._status = 500

    def payload(self, data: bytes) -> None:
        if self._status != 200:
            if len(self._error) < MAX_ERROR_BODY:
                self._error += data[:MAX_ERROR_BODY]
            return
        try:
            for event in self._splitter.feed(data):
                if event == b"[DONE]":
                    self._end()
                    return
                choices = self.reader.read(event)
                if choices is not None:
                    self._joint.grown(self, choices)
                if self._left:
                    return
        except (EngineFault, EventTooLarge):
            self._fault()

    def _end(self) -> None:
        if not self.reader.complete:
            self._fault()
            return
        self.ended_well = True
        self.leave(abort=False)
        self._joint.whole(self)

    def _fault(self) -> None:
        self._joint.failed("upstream_error", "The replica that served this request failed.")

    def ended(self) -> None:
        where = self._where
        if (self._status >= 500 or self._status == 429) and where is not None:
            self._gateway.router.failed(where, self._gateway.now())
        self._leave_upstream(abort=False)
        if self._status == 200:
            if not self._left:
                self._end()
        elif self._status in (429, 503):
            if not self._retry_elsewhere(where, "busy"):
                self._joint.failed("overloaded", f"{self.facts.route.name} is busy.")
        else:
            refusal = read_refusal(self._status, self._error, self.facts.endpoint.prompt_field)
            if refusal is None:
                self._fault()
            else:
                self._joint.refused(refusal)

    def broken(self, *, answered: bool, reused: bool) -> None:
        where, stale = self._where, reused and not answered and not self._retried_stale
        if not stale and where is not None:
            self._gateway.router.failed(where, self._gateway.now())
            if self._sent_to == where:
                self._gateway.engine_died(self.facts, where)
        self._leave_upstream(abort=True)
        if stale and self._may_retry():
            self._retried_stale = self._fresh = True
            self._gateway.telemetry.retries.add("stale")
            self._again()
        elif not self._retry_elsewhere(where, "broken" if answered else "unreachable"):
            code = "upstream_error" if answered else "upstream_unavailable"
            self._joint.failed(code, "The replica that served this request stopped answering.")

    def _may_retry(self) -> bool:
        return not self._left and not self.reader.pieces and not self.reader.complete

    def _retry_elsewhere(self, where: Address | None, reason: str) -> bool:
        place = self.place
        if where is None or place is None or place.tried or not self._may_retry():
            return False
        place.tried.add(where)
        if not self._gateway.router.others(self.facts.route, place.tried):
            return False
        self._gateway.telemetry.retries.add(reason)
        self._fresh = False
        self._again()
        return True

    def _again(self) -> None:
        self.reader, self._splitter = NumberedReader(self._number), EventSplitter()
        self._status, self._error = 0, b""
        self.held.clear()
        self.start()

    # Accounts

    def bill(self) -> meter.Bill:
        """What would be billed for this branch alone."""
        if self._status not in (0, 200):
            return meter.NOTHING
        reader, facts = self.reader, self.facts
        return meter.bill(
            final=reader.final if reader.complete else None,
            running=reader.running(),
            chunks=reader.pieces,
            prompt_estimate=prompt_estimate(facts),
            limits=meter.Limits(facts.route.context_length, facts.prepared.most_tokens),
        )
