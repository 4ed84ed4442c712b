"""`python -m berth_gateway`: a gateway configured by its environment, or alone by a snapshot file."""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import sys

from berth_gateway.config import Config, ConfigError
from berth_gateway.server import run
from berth_gateway.workers import Workers

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


def _seal_memory() -> None:
    """Prompts are in this process's memory: no core files, no reading by other processes of the same user."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _end_with_parent(parent: int) -> None:
    """A worker drains when the process that looks after it is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m berth_gateway",
        description="Serves the OpenAI-compatible API. Everything else is set by the environment; see docs/settings.md.",
    )
    parser.add_argument("--snapshot", metavar="FILE", help="run alone, with the keys and models of this JSON file")
    parser.add_argument("--port", metavar="P", help="port to listen on")
    parser.add_argument("--spool", metavar="DIR", help="folder for usage")
    parser.add_argument("--workers", metavar="N", help="processes that share the port")
    parser.add_argument("--worker", type=int, nargs=2, metavar=("N", "PARENT"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _environ(arguments: argparse.Namespace) -> dict[str, str]:
    said = {
        "BERTH_GATEWAY_SNAPSHOT_FILE": arguments.snapshot,
        "BERTH_GATEWAY_PORT": arguments.port,
        "BERTH_GATEWAY_DIR": arguments.spool,
        "BERTH_GATEWAY_WORKERS": arguments.workers,
    }
    return {**os.environ, **{name: value for name, value in said.items() if value is not None}}


def main() -> int:
    arguments = _arguments()
    try:
        environ = _environ(arguments)
        config = Config.from_environ(environ)
        if arguments.worker is not None:
            number, parent = arguments.worker
            _end_with_parent(parent)
            config = config.for_worker(number)
        elif config.workers > 1:
            return Workers(config, environ).run()
        _seal_memory()
        run(config)
    except ConfigError as fault:
        sys.stderr.write(f"berth_gateway: {fault}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
