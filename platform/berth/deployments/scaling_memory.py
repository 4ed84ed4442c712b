"""What scaling remembers between two looks, in Valkey: it is worth little after an hour, and can be learned again."""

from __future__ import annotations

from typing import Final, cast
from uuid import UUID

import msgspec

from berth.deployments.scaling.state import State
from berth.deployments.scaling_capacity import Pace
from berth.deployments.scaling_load import Tally
from berth.outbox.valkey import client

KEPT_MS: Final = 7 * 86_400_000  # the daily pattern is learned over days
_PREFIX: Final = "berth:scaling:"


class Memory(msgspec.Struct, frozen=True):
    fence: int = 0
    tally: Tally = Tally()
    state: State = State()
    reason: str = ""  # the first one of the last decision
    pace: Pace = Pace()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Memory).decode


def recall(deployment_id: UUID) -> Memory:
    """An empty one where there is none, or one of another version. Raises one of UNAVAILABLE."""
    packed = cast("bytes | None", client().get(f"{_PREFIX}{deployment_id}"))
    if packed is None:
        return Memory()
    try:
        return _decode(packed)
    except msgspec.MsgspecError:
        return Memory()


def remember(deployment_id: UUID, memory: Memory) -> None:
    """Raises one of UNAVAILABLE."""
    client().set(f"{_PREFIX}{deployment_id}", _encode(memory), px=KEPT_MS)


def forget(deployment_id: UUID) -> None:
    """Raises one of UNAVAILABLE."""
    client().delete(f"{_PREFIX}{deployment_id}")
