"""The one-machine set-up's command line: `python -m berth.host up`."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import subprocess
import sys

from berth.host.errors import HostError
from berth.host.home import Lock
from berth.host.machine import PROJECT, Machine
from berth.host.progress import Progress
from berth.host.up import Up

ADVICE = {
    errno.ENOSPC: "The disk is full. Free some space and start again; nothing that was stored is lost.",
    errno.EDQUOT: "Your disk quota is used up. Free some space and start again; nothing that was stored is lost.",
    errno.ENOENT: "A part of that path is missing and cannot be made. Set BERTH_HOME to a folder that can be; if what is "
    "missing is a program or package of Berth's, run `make setup`.",
    errno.EROFS: "It is read-only. Set BERTH_HOME to a folder that can be written to.",
    errno.EACCES: "You may not do that there. Set BERTH_HOME to a folder of your own, or run as the user who owns it.",
    errno.EPERM: "You may not do that there. Set BERTH_HOME to a folder of your own, or run as the user who owns it.",
    errno.ENOTDIR: "A part of that path is a file. Set BERTH_HOME to a folder.",
    errno.EEXIST: "A file is in the way. Set BERTH_HOME to a folder.",
    errno.EMFILE: "Too many files are open. Raise the limit with `ulimit -n 4096` and start again.",
}


def explain(error: OSError) -> str:
    """An error of the system as a sentence with what to do next."""
    what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    advice = ADVICE.get(error.errno or 0, "")
    return f"{what}. {advice}".strip()


def up() -> int:
    machine = Machine()
    timings = machine.home.read(machine.home.timings)
    return Up(machine, Progress(timings)).run()


def runs(machine: Machine) -> bool:
    """Whether a supervisor holds this BERTH_HOME; one that was killed leaves its file, but not its lock."""
    if not machine.home.running.exists():
        return False
    lock = Lock(machine.home.run / "supervisor.lock")
    if lock.acquire(0):
        lock.release()
        return False
    return True


def manage(arguments: list[str]) -> int:
    """Django's command line against the embedded services, which have to be running."""
    machine = Machine()
    if not runs(machine):
        raise HostError(
            f"Berth is not running for BERTH_HOME={machine.home.folder}. Start it with `make up` first, or set BERTH_HOME to "
            "the folder of the one that runs."
        )
    machine.settle_running()
    return subprocess.call([sys.executable, str(PROJECT / "manage.py"), *arguments], env=machine.environment())


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m berth.host", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start everything, or say where it is running already")
    door = commands.add_parser("manage", help="run a command of manage.py against the running installation")
    door.add_argument("arguments", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(argv)
    os.umask(0o077)
    try:
        return up() if chosen.command == "up" else manage(chosen.arguments)
    except HostError as error:
        sentence = str(error)
    except ValueError as error:  # a setting that cannot be read
        sentence = str(error)
    except OSError as error:
        sentence = explain(error)
    except KeyboardInterrupt:
        return 130
    with contextlib.suppress(OSError):
        sys.stderr.write(f"\nBerth cannot go on: {sentence}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
