"""The snapshot's place in Valkey, and what gateways report there."""

from __future__ import annotations

import logging
from typing import Any, cast

import msgspec

from berth.outbox.valkey import client
from berth_gateway.contract import GATEWAYS_KEY, SNAPSHOT_CHANNEL, SNAPSHOT_KEY, GatewayReport, SignedSnapshot

log = logging.getLogger(__name__)

# Epochs are UUIDv7 and sort by time of making, so a publisher that was held up in an older epoch cannot win either.
_PUT = """
local epoch = redis.call('HGET', KEYS[1], 'epoch')
local version = redis.call('HGET', KEYS[1], 'version')
if epoch and version then
  if epoch > ARGV[1] then return 0 end
  if epoch == ARGV[1] and tonumber(version) >= tonumber(ARGV[2]) then return 0 end
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'version', ARGV[2], 'signed', ARGV[3])
redis.call('PUBLISH', ARGV[4], ARGV[2])
return 1
"""


def put(epoch: str, version: int, signed: SignedSnapshot) -> bool:
    """Writes the snapshot and wakes the gateways, unless what is there is as new or newer; then False."""
    packed = msgspec.msgpack.encode(signed)
    return bool(client().eval(_PUT, 1, SNAPSHOT_KEY, epoch, str(version), packed, SNAPSHOT_CHANNEL))


def held() -> tuple[str, int] | None:
    """Epoch and version of what Valkey holds. None when it holds none, or something that is not one."""
    epoch, version, signed = cast("list[bytes | None]", client().hmget(SNAPSHOT_KEY, ["epoch", "version", "signed"]))
    if epoch is None or version is None or signed is None:
        return None
    try:
        return epoch.decode("ascii"), int(version)
    except ValueError:
        client().delete(SNAPSHOT_KEY)  # not ours: gateways would refuse it, and it must not outrank what we put
        log.error("snapshot_key_unreadable")
        return None


def reports() -> list[GatewayReport]:
    """What gateways last said of themselves, by name. What cannot be read is no report."""
    found = []
    raw = cast("dict[bytes, bytes]", client().hgetall(GATEWAYS_KEY))
    for packed in raw.values():
        try:
            found.append(msgspec.msgpack.decode(packed, type=GatewayReport))
        except (msgspec.MsgspecError, ValueError):
            log.warning("gateway_report_unreadable")
    return sorted(found, key=lambda report: report.gateway)


def forget_gateways(older_than: float) -> int:
    """Removes reports written before that Unix second, and unreadable ones; returns how many. One that lives writes again."""
    gone: list[Any] = []
    for name, packed in cast("dict[bytes, bytes]", client().hgetall(GATEWAYS_KEY)).items():
        try:
            dead = msgspec.msgpack.decode(packed, type=GatewayReport).at < older_than
        except (msgspec.MsgspecError, ValueError):
            dead = True
        if dead:
            gone.append(name)
    return client().hdel(GATEWAYS_KEY, *gone) if gone else 0
