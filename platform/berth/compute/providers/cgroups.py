"""Limits of a whole replica, agent and engine together, by the kernel's control groups (version 2), where a group was given to Berth.

The group named by BERTH_CGROUP has to be Berth's own (systemd: `Delegate=yes`) and without processes of its own. Where there is none,
the limits that each process sets on itself are all there is (docs/reconciler.md, "This machine").
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from berth.compute.launch import LaunchSpec

CONTROLLERS: Final = ("cpu", "memory", "pids")
_AGENT_BYTES: Final = 256 << 20
_PERIOD: Final = 100_000  # microseconds
_TASKS: Final = 96  # of the agent, an engine's HTTP server and what they start for a moment
_TASKS_A_SLOT: Final = 8
# The shell puts itself into the group and becomes the program: nothing of the replica ever runs outside.
_ENTER: Final = 'echo $$ >"$0" && exec "$@"'


class Cgroups:
    """Groups of replicas below one that is ours."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    def at(cls, root: Path | None) -> Cgroups | None:
        """None where it cannot be used: there is no such group, it lacks controllers, or it is not ours to write."""
        if root is None:
            return None
        try:
            offered = set((root / "cgroup.controllers").read_text().split())
            if not offered.issuperset(CONTROLLERS):
                return None
            (root / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
        except OSError:
            return None
        return cls(root)

    def enter(self, spec: LaunchSpec, command: list[str]) -> list[str]:
        """The command line that runs `command` within a group of the replica's own. Raises OSError."""
        group = self._root / spec.replica
        group.mkdir(mode=0o755, exist_ok=True)
        for name, value in limits(spec).items():
            (group / name).write_text(value)
        return ["/bin/sh", "-c", _ENTER, str(group / "cgroup.procs"), *command]

    def end(self, replica: str) -> None:
        """Kills whatever is left in the replica's group, at once and all of it, and removes the group."""
        group = self._root / replica
        with suppress(OSError):
            (group / "cgroup.kill").write_text("1")
        with suppress(OSError):
            group.rmdir()


def limits(spec: LaunchSpec) -> Mapping[str, str]:
    """Weights are mapped files, which count as far as they are in memory, so they come on top of what an engine allocates."""
    found = {
        "cpu.max": f"{(spec.threads + 1) * _PERIOD} {_PERIOD}",
        "pids.max": str(_TASKS + spec.slots * _TASKS_A_SLOT + 2 * spec.threads),
    }
    if spec.memory_limit is not None:
        files = sum(file.size for file in spec.files)
        found["memory.max"] = str(spec.memory_limit + files + _AGENT_BYTES)
        found["memory.swap.max"] = "0"
    return found
