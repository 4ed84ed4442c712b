"""Whether this machine has the environment for conversions that need PyTorch (`make converters`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SETTING: Final = "BERTH_CONVERTER_PYTHON"
_BESIDE: Final = Path(__file__).resolve().parents[4] / ".venv-converters" / "bin" / "python"


def converters_installed() -> bool:
    """As `berth_runtime.convert.converters` will find it, by the same setting; a test holds both together."""
    named = os.environ.get(SETTING, "")
    return Path(named).exists() if named else _BESIDE.exists()
