"""What can be wrong with what was brought, or with where it should go."""

from __future__ import annotations

from berth.catalog.intake.refused import Refused
from berth.web.errors import ApiError

__all__ = ["FileRefused", "QuotaExceeded", "Refused", "StoreFull", "StoreUnavailable"]


class FileRefused(ApiError):
    """`Refused`, with the file's name, for whoever asked."""

    status = 422

    def __init__(self, name: str, why: Refused, *, field: str | None = "path") -> None:
        file = why.file or name
        super().__init__(
            why.code, f"{file} was not taken in: {why.message}", field=field, params={"file": file, **why.params}
        )


class StoreFull(ApiError):
    status = 507

    def __init__(self) -> None:
        super().__init__(
            "store_full",
            "The disk of the model store is full. Free some space (or ask your operator to), then try again.",
        )


class StoreUnavailable(ApiError):
    """`why` is the service's code or our client's word for it, never its text."""

    status = 503

    def __init__(self, why: str) -> None:
        word = why if why.isalnum() and len(why) <= 64 else "unknown"
        super().__init__(
            "store_unavailable",
            f"The model store does not answer as it should ({word}). Try again in a minute; if it stays, tell your operator.",
            params={"why": word},
        )


class QuotaExceeded(ApiError):
    status = 422

    def __init__(self, *, used: int, asked: int, quota: int) -> None:
        super().__init__(
            "quota_exceeded",
            f"This needs {asked:,} bytes of storage, and {used:,} of the organisation's {quota:,} are used. Delete model versions "
            "that nobody needs, or ask your operator for more.",
            params={"used": used, "asked": asked, "quota": quota},
        )
