"""The folder of a conversion: progress and result, each replaced in one step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from berth_runtime.convert.job import ConversionResult, Failed, Progress
from berth_runtime.failure import Failure
from berth_runtime.files import write_atomically

_EVERY_SECONDS: Final = 1.0
_T = TypeVar("_T")


class WorkDir:
    """Says how far a conversion is. One process writes, anybody reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._said: tuple[str, float] = ("", 0.0)

    def progress(self, step: str, done: int, total: int) -> None:
        """At once for a new step and for the end of one, else once a second."""
        before, when = self._said
        now = time.time()
        if step == before and done < total and now - when < _EVERY_SECONDS:
            return
        self._said = (step, now)
        self.store("progress.json", Progress(step, done, total, now))

    def finish(self, result: ConversionResult) -> None:
        self.store("result.json", result)

    def fail(self, failure: Failure) -> None:
        """The next run of the same job tries again."""
        self.store("failure.json", Failed(failure.reason, failure.message))

    def result(self) -> ConversionResult | None:
        """What an earlier run finished."""
        return self.load("result.json", ConversionResult)

    def store(self, name: str, thing: msgspec.Struct) -> None:
        write_atomically(self.path / name, msgspec.json.encode(thing))

    def load(self, name: str, kind: type[_T]) -> _T | None:
        """None: it is not there, or is of another form."""
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None
