"""The last look at files before an engine opens them: nothing that runs as code when it is loaded.

The intake refuses all of this before a model is taken in (docs/models.md). Here it is asked again, of what really lies before the
engine, by other means and without trusting that anybody asked before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from berth_runtime.failure import Failure
from berth_runtime.spec import ModelFile

UNSAFE: Final = "unsafe_file"
_MOST_JSON: Final = 4 << 20  # bytes: configurations are far smaller; larger are tables of tokens
_NAMES: Final = (
    ".py", ".pyc", ".so", ".dll", ".dylib", ".sh", ".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".bin", ".nemo", ".npy", ".npz",
    ".h5", ".engine", ".zip", ".tar", ".gz", ".pth.tar", ".pte", ".joblib",
)  # fmt: skip
# Pickles of protocol 2 to 5, archives (which PyTorch's files are), programs.
_BEGINNINGS: Final = (
    b"\x80\x02",
    b"\x80\x03",
    b"\x80\x04",
    b"\x80\x05",
    b"PK\x03\x04",
    b"\x7fELF",
    b"MZ",
    b"#!",
    b"\x1f\x8b",
)
_CODE: Final = "auto_map"  # by which a configuration names modules to be run


def require_inert(files: tuple[ModelFile, ...]) -> None:
    """Raises Failure for the first file that could run."""
    for file in files:
        name = file.name or Path(file.path).name
        if name.lower().endswith(_NAMES):
            raise _unsafe(name, "files of this kind run code when they are loaded")
        try:
            with Path(file.path).open("rb") as stream:
                begins = stream.read(4)
        except OSError as error:
            raise Failure("file_unreadable", f"{name} cannot be read: {error.strerror}.") from None
        if begins.startswith(_BEGINNINGS):
            raise _unsafe(name, "by its content it is a pickle, an archive or a program")
        if begins.lstrip()[:1] == b"{" and file.size <= _MOST_JSON and _names_code(Path(file.path)):
            raise _unsafe(name, "it names code that is to be run")


def _unsafe(name: str, why: str) -> Failure:
    return Failure(UNSAFE, f"{name} is not loaded: {why}. Bring the model as safetensors, GGUF or ONNX without code.")


def _names_code(file: Path) -> bool:
    try:
        return _anywhere(json.loads(file.read_bytes()))
    except (ValueError, RecursionError, OSError):
        return False  # no JSON: what it is instead, the engine says


def _anywhere(value: Any) -> bool:
    if isinstance(value, dict):
        named = value.get(_CODE)
        return isinstance(named, (dict, list, str)) or any(_anywhere(each) for each in value.values())
    return isinstance(value, list) and any(_anywhere(each) for each in value)
