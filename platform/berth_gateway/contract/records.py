"""Inference records: what of requests an organisation lets be kept, and how it travels once it is sealed. docs/privacy.md."""

from __future__ import annotations

import hashlib
import hmac

import msgspec

RECORD_FORMAT = 1
BOX_VERSION = 1  # first byte of a sealed box
BOX_INFO = b"berth sealed box v1"  # of the key derivation
MOST_RECORDS = 1000  # that wait in Valkey; beyond that gateways drop


class Recording(msgspec.Struct, frozen=True):
    """An organisation's wish that its requests be kept, sealed to its key. Absent: nothing is kept."""

    key_id: str  # UUID of the key pair
    public_key: bytes  # X25519, 32 bytes
    most_bytes: int = 64 * 1024  # of a request and of an answer, each; what is longer is cut
    per_minute: int = 600  # records of the organisation, from each gateway process; more are dropped


class RecordContent(msgspec.Struct, frozen=True):
    """What is in a sealed box, as MessagePack. Nothing outside the box tells any of it."""

    format: int
    endpoint: str
    request: bytes  # the body as the client sent it
    response: bytes  # the body as the client got it, an event stream included
    request_cut: bool = False  # longer than the organisation's bound
    response_cut: bool = False


class SealedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record on its way. Ids are UUIDs; everything a reader could understand is in `box`, for the organisation's key alone."""

    format: int
    gateway: str
    event_id: str  # of the usage event
    org_id: str
    deployment_id: str
    api_key_id: str
    sealing_key_id: str
    accepted_at: float  # Unix seconds
    box: bytes
    mac: bytes = b""


def box_context(event_id: str, org_id: str) -> bytes:
    """What a box is bound to: it opens for this event of this organisation only."""
    return f"{event_id}\x00{org_id}".encode()


def record_mac(usage_key: bytes, record: SealedRecord) -> bytes:
    """HMAC-SHA256 over all of a record but its MAC, by a key made of the gateway's own for usage batches."""
    key = hmac.new(usage_key, b"berth records v1", hashlib.sha256).digest()
    ids = (
        record.gateway,
        record.event_id,
        record.org_id,
        record.deployment_id,
        record.api_key_id,
        record.sealing_key_id,
    )
    head = "\x00".join((str(record.format), *ids, repr(record.accepted_at))).encode()
    return hmac.new(key, head + b"\x00" + record.box, hashlib.sha256).digest()
