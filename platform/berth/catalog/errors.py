"""Why a file was not taken in."""

from __future__ import annotations

from typing import Any

from berth.web.errors import ApiError


class Refused(Exception):
    """A file is not what an engine may be given. `code` is stable; the message names the fault and quotes nothing of the file
    that was not checked first."""

    def __init__(self, code: str, message: str, **params: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.params = code, message, params


class FileRefused(ApiError):
    """`Refused`, with the file's name, for whoever asked."""

    status = 422

    def __init__(self, name: str, why: Refused) -> None:
        super().__init__(
            why.code, f"{name} was not taken in: {why.message}", field="path", params={"file": name, **why.params}
        )
