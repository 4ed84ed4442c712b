"""The reference: plain PyTorch in 32 bits, slow and exact, to hold other engines and quantizations against."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import ClassVar

from berth_runtime.cage import Limits
from berth_runtime.config import REFERENCE_PYTHON, read
from berth_runtime.engines.served import ServedLibrary
from berth_runtime.failure import Failure
from berth_runtime.prepare import work_folder
from berth_runtime.spec import LaunchSpec


class Reference(ServedLibrary):
    name: ClassVar[str] = "reference"
    package: ClassVar[str] = "transformers"
    distribution: ClassVar[str] = "transformers"
    server: ClassVar[str] = "reference.py"
    formats: ClassVar[tuple[str, ...]] = ("safetensors",)
    json_schema: ClassVar[bool] = False

    def version(self) -> str:
        return _versions(self.python())

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        quiet = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "DO_NOT_TRACK": "1",
        }
        work = str(work_folder(spec))
        own = {"USE_TORCH": "1", "TRANSFORMERS_VERBOSITY": "error", "HOME": work, "TMPDIR": work}
        return super().environment(spec) | quiet | own

    def limits(self, spec: LaunchSpec) -> Limits:
        """Some of its packages do not load without a place for temporary files."""
        return Limits(data_bytes=spec.memory_limit, file_bytes=1 << 20)

    def python(self) -> str:
        wish = read(REFERENCE_PYTHON)
        if not wish:
            return sys.executable
        if not (Path(wish).is_absolute() and os.access(wish, os.X_OK)):
            raise Failure(
                "engine_missing", f"{REFERENCE_PYTHON.name} names {wish}, which is no program at an absolute path."
            )
        return wish

    def require_package(self) -> None:
        _versions(self.python())


@cache
def _versions(python: str) -> str:
    asked = "import importlib.metadata as m; print(*(m.version(n) for n in ('torch', 'transformers', 'msgspec')))"
    done = subprocess.run([python, "-I", "-c", asked], capture_output=True, timeout=60, check=False)
    if done.returncode != 0:
        raise Failure(
            "engine_missing",
            f"{python} has no PyTorch with transformers and msgspec. Install them, or name another Python in {REFERENCE_PYTHON.name}.",
        )
    torch, transformers, _ = done.stdout.decode("ascii", "replace").split()
    return f"torch {torch}, transformers {transformers}"
