"""What may be believed of a batch: bytes in, events and faults out. Pure: no database, no Valkey, no clock of its own."""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

import msgspec

from berth_gateway.contract import USAGE_FORMAT, CountedBy, UsageBatch, UsageEvent, usage_mac

MAX_TOKENS = 100_000_000  # of a kind, in one request
MAX_MILLISECONDS = 7 * 24 * 3600 * 1000.0
MAX_AGE = 400 * 24 * 3600.0  # seconds: spools do not keep longer
MAX_AHEAD = 300.0  # seconds that a gateway's clock may be ahead
MAX_POSITION = 2**62


class Fault(NamedTuple):
    """Why something was left out: a stable code; `left_out` events, 0 for the whole batch."""

    reason: str
    left_out: int = 0


class Reading(NamedTuple):
    """`trusted` is None when the batch is not proven to come from its gateway: nothing in it counts, its positions neither."""

    gateway: str  # as it called itself
    trusted: UsageBatch | None
    events: tuple[UsageEvent, ...]
    faults: tuple[Fault, ...]


def read_batch(raw: bytes, key_of: Callable[[str], bytes], now: float) -> Reading:
    """Checks form, format, MAC, schema and ranges. One bad event does not take the good ones of its batch with it.

    `key_of` gives a gateway's MAC key, `now` is in Unix seconds.
    """
    try:
        batch = msgspec.msgpack.decode(raw, type=UsageBatch)
    except (msgspec.MsgspecError, ValueError):
        return Reading("", None, (), (Fault("unreadable"),))
    gateway = _printable(batch.gateway)
    if batch.format != USAGE_FORMAT:
        return Reading(gateway, None, (), (Fault("unknown_format"),))
    if gateway != batch.gateway or not 0 <= batch.start <= batch.end <= MAX_POSITION:
        return Reading(gateway, None, (), (Fault("bad_head"),))
    mac = usage_mac(key_of(gateway), gateway, batch.start, batch.end, batch.payload)
    if not hmac.compare_digest(mac, batch.mac):
        return Reading(gateway, None, (), (Fault("bad_mac"),))
    try:
        parts = msgspec.msgpack.decode(batch.payload, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, ValueError):
        return Reading(gateway, batch, (), (Fault("unreadable_payload"),))
    events: list[UsageEvent] = []
    wrong: dict[str, int] = {}
    for part in parts:
        event, reason = _read_event(bytes(part), gateway, now)
        if event is not None:
            events.append(event)
        else:
            wrong[reason] = wrong.get(reason, 0) + 1
    return Reading(gateway, batch, tuple(events), tuple(Fault(*item) for item in sorted(wrong.items())))


def _read_event(raw: bytes, gateway: str, now: float) -> tuple[UsageEvent | None, str]:
    try:
        event = msgspec.msgpack.decode(raw, type=UsageEvent)
    except (msgspec.MsgspecError, ValueError):
        return None, "bad_schema"
    if event.format != USAGE_FORMAT:
        return None, "unknown_event_format"
    if event.gateway != gateway:
        return None, "other_gateway"
    if not all(map(_is_uuid, (event.event_id, event.org_id, event.key_id, event.deployment_id))):
        return None, "bad_id"
    if not _in_range(event, now):
        return None, "out_of_range"
    return event, ""


def _in_range(event: UsageEvent, now: float) -> bool:
    tokens = (event.prompt_tokens, event.cached_tokens, event.completion_tokens, event.reasoning_tokens)
    return (
        all(0 <= count <= MAX_TOKENS for count in tokens)
        and event.cached_tokens <= event.prompt_tokens
        and event.reasoning_tokens <= event.completion_tokens
        and (event.counted_by is not CountedBy.NONE or not any(tokens))
        and 0 <= event.revision < 2**31
        and 100 <= event.status <= 599
        and _duration(event.duration_ms)
        and (event.first_token_ms is None or _duration(event.first_token_ms))
        and math.isfinite(event.accepted_at)
        and now - MAX_AGE <= event.accepted_at <= now + MAX_AHEAD
        and 0 < len(event.endpoint) <= 32
        and _printable(event.endpoint) == event.endpoint
    )


def _duration(milliseconds: float) -> bool:
    return math.isfinite(milliseconds) and 0 <= milliseconds <= MAX_MILLISECONDS


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _printable(text: str) -> str:
    """What a name may consist of, at most 64 characters of it."""
    return "".join(char for char in text if char.isascii() and char.isprintable())[:64]
