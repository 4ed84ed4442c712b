"""How long a replica that is asked to end may finish what runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from berth_runtime.spec import LaunchSpec


class StopOrder(msgspec.Struct, frozen=True):
    """`stop.json`, written beside the status by whoever sends SIGTERM and wants another drain time than the spec's."""

    drain_seconds: float


def drain_seconds(spec: LaunchSpec) -> float:
    try:
        raw = (Path(spec.state_dir) / "stop.json").read_bytes()
        return msgspec.json.decode(raw, type=StopOrder).drain_seconds
    except (OSError, msgspec.DecodeError):
        return spec.drain_seconds
