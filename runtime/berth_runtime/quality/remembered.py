"""What the reference said, for the next artefact that is compared with it: asking it is half of a comparison.

Of the bundled text alone, whose tokens are nobody's. One file, of the last reference; an organisation's own text is never in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from berth_runtime.files import write_atomically
from berth_runtime.quality.measure import Prediction
from berth_runtime.spec import ModelFile


class _Remembered(msgspec.Struct, frozen=True):
    key: str
    predictions: list[Prediction]


def remembered(
    place: Path, files: tuple[ModelFile, ...], text: str, places: int, version: str, ask: Callable[[], list[Prediction]]
) -> list[Prediction]:
    """What `ask` said the last time, if it was of the same files, text, number of places and version of the engine; else what it says."""
    told = msgspec.json.encode([[file.sha256 for file in files], text, places, version])
    key = hashlib.sha256(told).hexdigest()
    try:
        found = msgspec.msgpack.decode(place.read_bytes(), type=_Remembered)
    except (OSError, msgspec.DecodeError):
        found = None
    if found is not None and found.key == key:
        return found.predictions
    said = ask()
    with suppress(OSError):  # then it is asked again
        write_atomically(place, msgspec.msgpack.encode(_Remembered(key, said)))
    return said
