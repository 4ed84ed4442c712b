"""Becomes another program after tying it to its parent's life; run by path, with nothing but the standard library.

`python -I -S launch.py PARENT SIGNAL IDENTITY program arguments…`

PARENT is the pid of the process that started this one. When it ends, the kernel sends SIGNAL to the program, so that a
killed supervisor leaves nothing behind. This is done here, in a process of its own, and not in a `preexec_fn`, which is
unsafe in a process with threads. IDENTITY is one of:

- `same`: the program runs as whoever called.
- `mapped`: in a user namespace in which root is called nobody. PostgreSQL refuses to run as root and is content with
  that; files stay the caller's, so it works below folders that only root may enter. Some containers forbid it.
- `nobody`: as the system's user nobody. The program and its files have to be reachable for that user.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
NOBODY = 65534


def _call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def become(identity: str, libc: ctypes.CDLL) -> None:
    """Changes who this process is; raises OSError where the system does not let it."""
    if identity == "mapped":
        uid, gid = os.geteuid(), os.getegid()
        _call(libc.unshare(CLONE_NEWUSER), "unshare(CLONE_NEWUSER)")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {gid} 1")
    elif identity == "nobody":
        user = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    elif identity != "same":
        raise OSError(f"unknown identity {identity}")


def main(arguments: list[str]) -> int:
    parent, death_signal, identity, *argv = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        become(identity, libc)
        if sys.platform == "linux":
            # After the change of identity, which clears it.
            _call(libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != int(parent):
            return 1  # the parent ended before the kernel was told to watch it
        for number in (signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)  # Python ignores or catches these; the program shall not inherit that
        os.execv(argv[0], argv)  # noqa: S606 - an argument list, no shell
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[0]} as {identity}: {error}\n")
    return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
