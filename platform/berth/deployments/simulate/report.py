"""A comparison as a table for people, and as plain data for programs."""

from __future__ import annotations

from typing import Any

import msgspec

from berth.deployments.simulate.compare import Comparison, all_of
from berth.deployments.simulate.measure import Measured

_HEAD = (
    f"{'':15}{'TTFT p50/95/99 s':>19}{'TPOT p50/95/99 ms':>20}{'in goal':>9}{'rep.-hours':>11}{'ratio':>7}"
    f"{'most':>6}{'held':>8}{'dropped':>8}{'longest':>9}{'actions':>8}{'reversals/h':>12}"
)


def lines(found: Comparison, label: str) -> list[str]:
    """In words, widths and units as printed."""
    capacity = found.capacity
    told = [
        label,
        f"one replica: {capacity.requests_per_second or 0:.1f} requests a second within the goals "
        f"({capacity.pooled_requests_per_second or 0:.1f} in a large fleet), {capacity.concurrency or 0:.0f} at once; "
        f"{capacity.prompt_tokens or 0:.0f} prompt and {capacity.completion_tokens or 0:.0f} reply tokens",
        "",
        _HEAD,
    ]
    return told + [_row(each, found.ratio(each)) for each in all_of(found)]


def _row(one: Measured, ratio: float) -> str:
    first = "/".join(f"{each:.2f}" for each in one.ttft)
    token = "/".join(f"{1e3 * each:.0f}" for each in one.tpot)
    return (
        f"{one.name:15}{first:>19}{token:>20}{100 * one.share:>8.2f}%{one.replica_hours:>11.2f}{ratio:>7.2f}"
        f"{one.most_replicas:>6}{one.held:>8}{one.dropped:>8}{one.longest_wait:>8.1f}s{one.actions:>8}{one.reversals_per_hour:>12.2f}"
    )


def step_lines(found: Comparison) -> list[str]:
    return [f"{each.at:8.0f} s  {each.before:3} -> {each.after:3}  {each.why}" for each in found.steps]


def as_plain(found: Comparison) -> dict[str, Any]:
    rows = {each.name: msgspec.to_builtins(each) | {"ratio": found.ratio(each)} for each in all_of(found)}
    return {"runs": rows, "steps": msgspec.to_builtins(found.steps), "capacity": msgspec.to_builtins(found.capacity)}
