"""Why a file was not taken in. Nothing of Django here: the caged reader uses it too."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """A file is not what an engine may be given. `code` is stable; the message names the fault and quotes nothing of the file
    that was not checked first. `file`: which one of several."""

    def __init__(self, code: str, message: str, *, file: str | None = None, **params: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.file, self.params = code, message, file, params
