"""What safetensors and ONNX models predict, asked of the libraries that define these formats, in the converters' environment."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from berth_runtime.convert.converters import laid_out, python_of_converters
from berth_runtime.failure import Failure
from berth_runtime.quality.measure import Prediction
from berth_runtime.spec import ModelFile

WINDOW: Final = 256  # tokens read in one go, as with llama.cpp
_SCRIPT: Final = Path(__file__).parent / "scripts" / "predict.py"


class _Answer(msgspec.Struct):
    vocabulary: int
    places: list[tuple[int, list[tuple[int, float]]]]


def predictions(
    files: tuple[ModelFile, ...], text: str, *, threads: int, places: int, said: Callable[[int, int], None]
) -> list[Prediction]:
    """What the model predicts at the first `places` places of the text, which may be somebody's own: it lies in no file. Raises Failure."""
    python = python_of_converters()
    if python is None:
        raise Failure(
            "converter_missing",
            "Measuring a model in this format needs PyTorch, and this machine's converters are not installed. Run `make converters`.",
        )
    folder = Path(tempfile.mkdtemp(prefix="berth-quality-"))
    try:
        command = [str(python), "-B", str(_SCRIPT), "--source", str(laid_out(files, folder / "model"))]
        command += ["--places", str(places), "--window", str(WINDOW)]
        said(0, places)
        done = subprocess.run(
            command,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)},
            cwd=folder, input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise Failure("not_loadable", "The libraries of its format cannot load the files that were made.")
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    said(places, places)
    return [Prediction(actual, dict(named), answer.vocabulary) for actual, named in answer.places]
