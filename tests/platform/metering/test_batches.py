"""What is believed of a batch, by properties: pure, without database."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.metering.batches import MAX_TOKENS, read_batch
from berth_gateway.contract import CountedBy, Outcome, UsageBatch, UsageEvent, usage_key, usage_mac

MASTER = b"m" * 32
NOW = 1_800_000_000.0
IDS = ["018f0000-0000-7000-8000-00000000000%d" % n for n in range(4)]  # noqa: UP031


def key_of(gateway: str) -> bytes:
    return usage_key(MASTER, gateway)


def event(**fields: Any) -> UsageEvent:
    values: dict[str, Any] = {
        "format": 1,
        "event_id": IDS[0],
        "gateway": "g",
        "org_id": IDS[1],
        "key_id": IDS[2],
        "deployment_id": IDS[3],
        "revision": 1,
        "endpoint": "completions",
        "stream": False,
        "accepted_at": NOW,
        "duration_ms": 1.0,
        "outcome": Outcome.OK,
        "status": 200,
        "counted_by": CountedBy.ENGINE,
        "prompt_tokens": 3,
        "cached_tokens": 1,
        "completion_tokens": 2,
        "reasoning_tokens": 1,
    }
    return UsageEvent(**values | fields)


def batch(events: list[Any], start: int = 0, end: int = 9, **fields: Any) -> bytes:
    payload = msgspec.msgpack.encode(events)
    mac = usage_mac(key_of("g"), "g", start, end, payload)
    values = {"format": 1, "gateway": "g", "start": start, "end": end, "payload": payload, "mac": mac}
    return msgspec.msgpack.encode(UsageBatch(**values | fields))


def test_an_honest_batch_is_believed_whole() -> None:
    reading = read_batch(batch([event(), event(first_token_ms=0.5)]), key_of, NOW)
    assert reading.trusted is not None
    assert (reading.faults, len(reading.events)) == ((), 2)


@pytest.mark.threat("D3")
@given(at=st.integers(min_value=0), flip=st.integers(min_value=1, max_value=255))
@settings(max_examples=300, deadline=None)
def test_any_changed_byte_is_noticed_or_harmless(at: int, flip: int) -> None:
    """Either the batch is refused, or what is read from it is exactly what was signed."""
    raw = bytearray(batch([event()]))
    raw[at % len(raw)] ^= flip
    reading = read_batch(bytes(raw), key_of, NOW)
    if reading.trusted is not None:
        assert (reading.events, reading.trusted.start, reading.trusted.end) == ((event(),), 0, 9)
    else:
        assert reading.events == ()
        assert reading.faults


@pytest.mark.threat("D3")
@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_crash_it(raw: bytes) -> None:
    assert read_batch(raw, key_of, NOW).trusted is None


@pytest.mark.threat("D3")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mac": b""}, "bad_mac"),
        ({"mac": usage_mac(key_of("other"), "g", 0, 9, b"")}, "bad_mac"),
        ({"gateway": "other"}, "bad_mac"),
        ({"start": 1}, "bad_mac"),
        ({"end": 10}, "bad_mac"),
        ({"end": -1}, "bad_head"),
        ({"start": 10}, "bad_head"),
        ({"end": 2**63 - 1}, "bad_head"),
        ({"gateway": "g\x00"}, "bad_head"),
        ({"gateway": "g" * 65}, "bad_head"),
        ({"format": 2}, "unknown_format"),
    ],
)
def test_a_batch_that_is_not_proven_counts_for_nothing(fields: dict[str, Any], reason: str) -> None:
    signed = msgspec.msgpack.decode(batch([event()]), type=UsageBatch)
    raw = msgspec.msgpack.encode(msgspec.structs.replace(signed, **fields))
    reading = read_batch(raw, key_of, NOW)
    assert (reading.trusted, reading.events) == (None, ())
    assert [fault.reason for fault in reading.faults] == [reason]


@pytest.mark.threat("D3")
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (event(prompt_tokens=-1, cached_tokens=0), "out_of_range"),
        (event(prompt_tokens=MAX_TOKENS + 1), "out_of_range"),
        (event(cached_tokens=4), "out_of_range"),
        (event(reasoning_tokens=3), "out_of_range"),
        (event(counted_by=CountedBy.NONE), "out_of_range"),
        (event(status=7), "out_of_range"),
        (event(revision=-1), "out_of_range"),
        (event(revision=2**40), "out_of_range"),
        (event(duration_ms=float("nan")), "out_of_range"),
        (event(duration_ms=-1.0), "out_of_range"),
        (event(first_token_ms=float("inf")), "out_of_range"),
        (event(accepted_at=NOW + 3600), "out_of_range"),
        (event(accepted_at=0.0), "out_of_range"),
        (event(accepted_at=float("nan")), "out_of_range"),
        (event(endpoint=""), "out_of_range"),
        (event(endpoint="a\nb"), "out_of_range"),
        (event(org_id="'; DROP TABLE"), "bad_id"),
        (event(event_id=IDS[0].upper().replace("F", "F") + " "), "bad_id"),
        (event(gateway="another"), "other_gateway"),
        (event(format=2), "unknown_event_format"),
        ({"format": 1, "event_id": IDS[0]}, "bad_schema"),
        ({**msgspec.structs.asdict(event()), "outcome": "free"}, "bad_schema"),
        ({**msgspec.structs.asdict(event()), "prompt_tokens": 1.5}, "bad_schema"),
        ({**msgspec.structs.asdict(event()), "prompt_tokens": "3"}, "bad_schema"),
        (7, "bad_schema"),
    ],
)
def test_a_wrong_event_is_left_out_and_takes_no_good_one_with_it(wrong: Any, reason: str) -> None:
    reading = read_batch(batch([event(), wrong, event()]), key_of, NOW)
    assert reading.trusted is not None
    assert len(reading.events) == 2
    assert [(fault.reason, fault.left_out) for fault in reading.faults] == [(reason, 1)]


def test_an_unreadable_payload_under_a_good_mac_is_kept_aside_but_counts_as_arrived() -> None:
    payload = b"\xc1"
    raw = batch([], payload=payload, mac=usage_mac(key_of("g"), "g", 0, 9, payload))
    reading = read_batch(raw, key_of, NOW)
    assert reading.trusted is not None
    assert [fault.reason for fault in reading.faults] == ["unreadable_payload"]
