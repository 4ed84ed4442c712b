"""Overwrites the memory of the GPUs that this process may see (CUDA_VISIBLE_DEVICES), so that nobody reads what was there before.

    python -I -S -B scrub.py

A process of its own, with nothing but the standard library: what it allocated is gone with it. Drivers do not promise to clear memory
between processes. Ends with 0 when every device was overwritten as far as it could be allocated, else with a sentence and 1.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

CHUNK = 256 << 20  # bytes; then smaller ones, down to LEAST
LEAST = 2 << 20


class CudaError(Exception):
    pass


class Cuda:
    """The few calls of the driver that are needed."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._do("cuInit", 0)

    def devices(self) -> int:
        count = ctypes.c_int()
        self._do("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def enter(self, index: int) -> ctypes.c_void_p:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._do("cuDeviceGet", ctypes.byref(device), index)
        self._do("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        return context

    def leave(self, context: ctypes.c_void_p) -> None:
        self._do("cuCtxDestroy_v2", context)

    def fill(self, size: int) -> bool:
        """Allocates that much, for as long as the context lives, and overwrites it. False: there is not so much."""
        pointer = ctypes.c_uint64()
        if self._library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) != 0:
            return False
        self._do("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        return True

    def wait(self) -> None:
        self._do("cuCtxSynchronize")

    def _do(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise CudaError(f"{name} answered {status}")


def scrub(library: Any) -> int:
    """Bytes that were overwritten, on all devices. Raises CudaError."""
    cuda = Cuda(library)
    count = cuda.devices()
    if count == 0:
        raise CudaError("no device is to be seen")
    return sum(_scrub_one(cuda, index) for index in range(count))


def _scrub_one(cuda: Cuda, index: int) -> int:
    context = cuda.enter(index)
    total, size = 0, CHUNK
    while size >= LEAST:
        if cuda.fill(size):
            total += size
        else:
            size //= 2
    cuda.wait()
    cuda.leave(context)
    return total


def scrub_devices(seconds: float, script: str = __file__) -> None:
    """Runs this file as a process of its own. Raises Failure "scrub_failed": then no engine may start on these devices."""
    from berth_runtime.failure import Failure  # not at the top: the script itself has the standard library only

    command = [sys.executable, "-I", "-S", "-B", script]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(
            "scrub_failed", f"The devices' memory could not be overwritten ({type(error).__name__})."
        ) from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Failure("scrub_failed", (said[-1] if said else "The devices' memory could not be overwritten.")[:400])


def main() -> int:
    try:
        scrub(ctypes.CDLL("libcuda.so.1"))
    except (OSError, CudaError) as error:
        sys.stderr.write(f"The devices' memory could not be overwritten: {error}.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
