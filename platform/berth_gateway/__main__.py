"""`python -m berth_gateway`: a gateway configured by its environment."""

from __future__ import annotations

import ctypes
import resource
import sys

from berth_gateway.config import Config, ConfigError
from berth_gateway.server import run

_PR_SET_DUMPABLE = 4


def _seal_memory() -> None:
    """Prompts are in this process's memory: no core files, no reading by other processes of the same user."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def main() -> int:
    try:
        config = Config.from_environ()
        _seal_memory()
        run(config)
    except ConfigError as fault:
        sys.stderr.write(f"berth_gateway: {fault}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
