"""Every environment variable that the runtime reads, with its default and what it is for."""

from __future__ import annotations

import os
from typing import NamedTuple


class Setting(NamedTuple):
    name: str
    default: str
    help: str


LLAMA_SERVER = Setting(
    "BERTH_LLAMA_SERVER",
    "",
    "Path of the llama-server to run. Empty: the one on PATH, else the bundled llama.cpp. `bundled`: always the bundled one.",
)

VLLM = Setting("BERTH_VLLM", "", "Path of the `vllm` to run. Empty: the one on PATH.")
TRTLLM_SERVE = Setting("BERTH_TRTLLM_SERVE", "", "Path of the `trtllm-serve` to run. Empty: the one on PATH.")
OLLAMA = Setting("BERTH_OLLAMA", "", "Path of the `ollama` to run. Empty: the one on PATH.")
REFERENCE_PYTHON = Setting(
    "BERTH_REFERENCE_PYTHON",
    "",
    "Path of a Python with PyTorch and transformers, for the reference engine. Empty: the runtime's own.",
)

CONVERTER_PYTHON = Setting(
    "BERTH_CONVERTER_PYTHON",
    "",
    "Python of the environment that `make converters` makes, for conversions that need PyTorch. "
    "Empty: the one in `.venv-converters`, if it is there.",
)

SETTINGS: tuple[Setting, ...] = (
    LLAMA_SERVER,
    VLLM,
    TRTLLM_SERVE,
    OLLAMA,
    REFERENCE_PYTHON,
    CONVERTER_PYTHON,
)


def read(setting: Setting) -> str:
    """The value in the environment, or the default."""
    return os.environ.get(setting.name, setting.default)
