"""Limits that a process puts on itself before it reads what nobody has checked: memory, time, no file written, no network, no
other program. Linux; on other systems what is missing is left out and told.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import resource
import signal
import struct
from contextlib import suppress
from typing import Final

DATA_BYTES: Final = 448 << 20  # heap and other private memory; files mapped to be read do not count
CPU_SECONDS: Final = 5

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 38, 22
_SECCOMP_MODE_FILTER = 2
_RETURN_ALLOW, _RETURN_ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06  # BPF: load a word, jump if equal, mask, return
_WRITING: Final = 0o3 | 0o100 | 0o1000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
_ARGUMENTS: Final = 16  # where they begin in what the filter sees; each has 8 bytes

# Architecture as the kernel numbers it; the numbers of the calls that are refused: sockets, other processes and programs, tracing,
# mounts, names of files, loading code into the kernel; and of calls that open a file, with the position of their flags.
_CALLS: Final[dict[str, tuple[int, tuple[int, ...], tuple[tuple[int, int], ...]]]] = {
    "x86_64": (
        0xC000003E,
        (41, 42, 43, 44, 46, 49, 50, 53, 57, 58, 59, 101, 165, 166, 175, 246, 272, 308, 310, 311, 321, 322, 425, 82, 83, 84,
         86, 87, 88, 90, 92, 263, 264, 265, 266, 313, 56, 85, 435, 437),
        ((257, 2), (2, 1)),
    ),
    "aarch64": (
        0xC00000B7,
        (198, 199, 200, 201, 202, 203, 206, 211, 221, 281, 117, 40, 39, 105, 97, 268, 270, 271, 280, 425, 33, 34, 35, 36, 37,
         38, 52, 54, 273, 220, 435, 437),
        ((56, 2),),
    ),
}  # fmt: skip


def enter(*, data_bytes: int = DATA_BYTES, cpu_seconds: int = CPU_SECONDS) -> list[str]:
    """What holds from now on: "limits", "no_new_privileges", "no_calls". There is no way back."""
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_DATA, data_bytes),
    ):
        with suppress(ValueError, OSError):  # a lower limit that is there already stays
            resource.setrlimit(kind, (value, value))
    held = ["limits"]
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "prctl"):
        return held
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return held
    held.append("no_new_privileges")
    if _refuse_calls(libc):
        held.append("no_calls")
    return held


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def _refuse_calls(libc: ctypes.CDLL) -> bool:
    known = _CALLS.get(platform.machine())
    if known is None:
        return False
    architecture, calls, opening = known
    steps: list[tuple[int, int, int, int]] = []
    last = 4 + len(calls) + 4 * len(opening)  # where what is allowed ends; what is refused is one further

    def jump(value: int, *, same: int | None = None, other: int | None = None) -> None:
        here = len(steps) + 1
        steps.append((_EQUAL, 0 if same is None else same - here, 0 if other is None else other - here, value))

    steps.append((_LOAD, 0, 0, 4))  # the architecture: another one's calls have other numbers
    jump(architecture, other=last + 1)
    steps.append((_LOAD, 0, 0, 0))  # the call's number
    for call in calls:
        jump(call, same=last + 1)
    for call, position in opening:
        jump(call, other=len(steps) + 4)
        steps.append((_LOAD, 0, 0, _ARGUMENTS + 8 * position))
        steps.append((_AND, 0, 0, _WRITING))
        jump(0, same=last, other=last + 1)
    steps.append((_LOAD, 0, 0, 0))
    steps.append((_RETURN, 0, 0, _RETURN_ALLOW))
    steps.append((_RETURN, 0, 0, _RETURN_ERRNO | errno.EPERM))
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(steps), ctypes.cast(buffer, ctypes.c_void_p))
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0)
