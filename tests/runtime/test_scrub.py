"""Overwriting GPU memory: on a driver of the test's own, since no GPU was here to run it on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from berth_runtime.failure import Failure
from berth_runtime.scrub import LEAST, CudaError, scrub, scrub_devices


class Driver:
    """libcuda with one device: counts what is allocated and what of it is overwritten."""

    def __init__(self, memory: int, devices: int = 1, broken: str = "") -> None:
        self.free, self.devices, self.broken, self.filled, self.open = memory, devices, broken, 0, 0

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> int:
            if name == self.broken:
                return 999
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = self.devices
            elif name == "cuMemAlloc_v2":
                size = arguments[1].value
                if size > self.free:
                    return 2
                self.free -= size
            elif name == "cuMemsetD8_v2":
                assert arguments[1].value == 0
                self.filled += arguments[2].value
            elif name in ("cuCtxCreate_v2", "cuCtxDestroy_v2"):
                self.open += 1 if name == "cuCtxCreate_v2" else -1
            return 0

        return answer


@pytest.mark.threat("E4")
def test_everything_that_can_be_had_is_overwritten() -> None:
    memory = 24 * (1 << 30) - 12345
    driver = Driver(memory)
    assert scrub(driver) == driver.filled
    assert memory - driver.filled < LEAST
    assert driver.open == 0


@pytest.mark.parametrize("broken", ["cuInit", "cuMemsetD8_v2", "cuCtxSynchronize"])
def test_what_was_not_overwritten_is_not_called_so(broken: str) -> None:
    with pytest.raises(CudaError, match=broken):
        scrub(Driver(1 << 30, broken=broken))
    with pytest.raises(CudaError):
        scrub(Driver(1 << 30, devices=0))


@pytest.mark.threat("E4")
def test_without_a_driver_no_engine_starts() -> None:
    with pytest.raises(Failure) as failed:
        scrub_devices(30)
    assert failed.value.reason == "scrub_failed"
    assert "libcuda" in failed.value.message


def test_a_scrub_that_hangs_is_given_up(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text("import time; time.sleep(60)")
    with pytest.raises(Failure, match="TimeoutExpired"):
        scrub_devices(0.2, str(script))
