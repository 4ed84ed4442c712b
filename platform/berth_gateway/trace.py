"""Traces of requests, without content: which trace a request belongs to, and the spans it becomes at its end. Pure.

W3C trace context comes in by `traceparent` and goes out to the engine; spans are OTLP's JSON. Nothing here costs a request anything
while no exporter is set.
"""

from __future__ import annotations

import os
import random
import re
from typing import Any

from msgspec import Struct

from berth_gateway.contract import Outcome, UsageEvent

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")
_NONE_ID, _NONE_SPAN = b"0" * 32, b"0" * 16
SERVER, CLIENT, INTERNAL = 2, 3, 1  # OTLP's kinds of span
_ERROR = 2
_FAILED = frozenset({Outcome.UPSTREAM_ERROR, Outcome.TIMEOUT, Outcome.INTERRUPTED})


class Trace(Struct, frozen=True):
    """Ids in lower-case hexadecimal. `span` is the request's own, `upstream` the one that the engine's spans belong to."""

    trace: str
    span: str
    upstream: str
    parent: str | None = None

    @property
    def outgoing(self) -> str:
        """The `traceparent` that the engine gets."""
        return f"00-{self.trace}-{self.upstream}-01"


def read_traceparent(value: bytes) -> tuple[str, str, bool] | None:
    """Trace, parent and whether it is sampled; None for what is none (W3C: it is then as if there were no header)."""
    found = _TRACEPARENT.match(value.strip())
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[5] is not None):
        return None
    if found[2] == _NONE_ID or found[3] == _NONE_SPAN:
        return None
    return found[2].decode(), found[3].decode(), bool(int(found[4], 16) & 1)


def begin(header: bytes | None, share: float) -> Trace | None:
    """The trace of a request that comes now. A parent says whether it is sampled; of the others `share` (0 to 1) are."""
    given = read_traceparent(header) if header is not None else None
    if given is not None:
        trace, parent, sampled = given
        return Trace(trace, os.urandom(8).hex(), os.urandom(8).hex(), parent) if sampled else None
    if share < 1 and random.random() >= share:  # noqa: S311 - a sample, no secret
        return None
    return Trace(os.urandom(16).hex(), os.urandom(8).hex(), os.urandom(8).hex())


class Times(Struct, frozen=True):
    """When a request came to which point, in seconds after it was admitted; None: it never did."""

    queued: float | None  # asked for a replica
    sent: float | None  # went to one
    first_token: float | None
    ended: float


class Ended(Struct, frozen=True):
    """A request that is over."""

    trace: Trace
    request_id: str
    event: UsageEvent
    times: Times


def spans_of(ended: Ended) -> list[dict[str, Any]]:
    """The request's span and those of its parts, as OTLP writes them. Ids and figures only."""
    trace, event, times = ended.trace, ended.event, ended.times
    path = f"/v1/{event.endpoint}"
    whole: dict[str, Any] = {
        **_span(trace, trace.span, trace.parent, f"POST {path}", SERVER, event.accepted_at, 0.0, times.ended),
        "attributes": _attributes(
            {
                "http.request.method": "POST",
                "http.route": path,
                "http.response.status_code": event.status,
                "berth.request_id": ended.request_id,
                "berth.event_id": event.event_id,
                "berth.org_id": event.org_id,
                "berth.deployment_id": event.deployment_id,
                "berth.revision": event.revision,
                "berth.outcome": event.outcome.value,
                "berth.stream": event.stream,
                "gen_ai.usage.input_tokens": event.prompt_tokens,
                "gen_ai.usage.output_tokens": event.completion_tokens,
            }
        ),
    }
    if event.outcome in _FAILED:
        whole["status"] = {"code": _ERROR}
    spans = [whole]

    def part(
        name: str, start: float | None, end: float | None, span_id: str | None = None, kind: int = INTERNAL
    ) -> None:
        if start is not None:
            until = times.ended if end is None else end
            made = _span(trace, span_id or os.urandom(8).hex(), trace.span, name, kind, event.accepted_at, start, until)
            spans.append(made)

    part("admission", 0.0, times.queued)
    part("queue", times.queued, times.sent)
    part("upstream first token", times.sent, times.first_token, trace.upstream, CLIENT)
    part("stream", times.first_token, times.ended)
    return spans


def _span(
    trace: Trace, span_id: str, parent: str | None, name: str, kind: int, base: float, start: float, end: float
) -> dict[str, Any]:
    made: dict[str, Any] = {"traceId": trace.trace, "spanId": span_id, "name": name, "kind": kind}
    if parent is not None:
        made["parentSpanId"] = parent
    made["startTimeUnixNano"] = str(int((base + start) * 1e9))
    made["endTimeUnixNano"] = str(int((base + max(start, end)) * 1e9))
    return made


def _attributes(values: dict[str, str | int | bool]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in values.items()]


def _value(value: str | int | bool) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def export_of(gateway: str, ended: list[Ended]) -> dict[str, Any]:
    """One ExportTraceServiceRequest."""
    resource = {"attributes": _attributes({"service.name": "berth-gateway", "service.instance.id": gateway})}
    spans = [span for each in ended for span in spans_of(each)]
    return {
        "resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "berth_gateway"}, "spans": spans}]}]
    }
