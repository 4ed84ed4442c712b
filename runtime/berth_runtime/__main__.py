"""`python -m berth_runtime serve|launch SPEC.json [--status-port PORT]` and `… verify-engine --engine E --model M`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from berth_runtime import verify_engine
from berth_runtime.launch import launch
from berth_runtime.serve import EXIT_BAD_SPEC, EXIT_FAILED, EXIT_STOPPED, lock, prepare, serve
from berth_runtime.specfile import BadSpec, load_spec


def main() -> int:
    """Exit status 0: ended as asked, or running already; 1: the replica failed; 2: the spec cannot be run."""
    given = _arguments().parse_args()
    os.umask(0o077)
    if given.command == "verify-engine":
        return verify_engine.verify_engine(given)
    try:
        spec = load_spec(given.spec)
        engine = prepare(spec)
        if given.command == "launch":
            if launch(spec, engine):
                return EXIT_STOPPED
            sys.stderr.write(f"The replica {spec.replica} ended before it could say why.\n")
            return EXIT_FAILED
        if lock(spec) is None:
            sys.stderr.write(f"The replica {spec.replica} is running already.\n")
            return EXIT_STOPPED
    except BadSpec as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_SPEC
    return serve(spec, engine, status_port=given.status_port)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m berth_runtime", description="Runs one replica of a model.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, does in (("serve", "run the replica in this process"), ("launch", "run it detached")):
        command = commands.add_parser(name, help=does)
        command.add_argument("spec", type=Path, help="the launch spec, a JSON file")
    commands.choices["serve"].add_argument(
        "--status-port", type=_port, metavar="PORT", help="tell the status over HTTP too, on the spec's host"
    )
    check = commands.add_parser("verify-engine", help="hold an engine that is installed here to the contract")
    verify_engine.add_arguments(check)
    return parser


def _port(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 65535:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
