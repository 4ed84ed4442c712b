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

SETTINGS: tuple[Setting, ...] = (LLAMA_SERVER, VLLM)


def read(setting: Setting) -> str:
    """The value in the environment, or the default."""
    return os.environ.get(setting.name, setting.default)
