"""The control plane's and the runtime's types of the border are the same."""

from __future__ import annotations

import msgspec
import pytest

import berth_runtime.spec
from berth.compute import launch


@pytest.mark.parametrize(
    "name", ["ModelFile", "Adapter", "LaunchSpec", "PhaseTiming", "EngineMetrics", "ReplicaStatus"]
)
def test_both_sides_have_the_same_schema(name: str) -> None:
    ours, theirs = getattr(launch, name), getattr(berth_runtime.spec, name)
    ((_, left), (_, right)) = (_described(ours), _described(theirs))
    assert left == right
    assert ours.__struct_fields__ == theirs.__struct_fields__
    assert ours.__struct_defaults__ == theirs.__struct_defaults__


def test_both_sides_have_the_same_numbers_and_phases() -> None:
    assert (launch.LAUNCH_FORMAT, launch.STATUS_FORMAT) == (
        berth_runtime.spec.LAUNCH_FORMAT,
        berth_runtime.spec.STATUS_FORMAT,
    )
    assert [phase.value for phase in launch.Phase] == [phase.value for phase in berth_runtime.spec.Phase]
    assert [phase for phase in launch.Phase if phase.final] == ["stopped", "failed"]


def _described(kind: type) -> tuple[object, object]:
    """The schema without descriptions, which may say more on one side."""
    top, parts = msgspec.json.schema_components([kind], ref_template="{name}")
    return top, {name: {k: v for k, v in part.items() if k != "description"} for name, part in parts.items()}
