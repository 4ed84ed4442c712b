"""What an API server answers when it does not do as asked: a Status object."""

from __future__ import annotations

from typing import Any


class Failure(Exception):
    def __init__(
        self, code: int, reason: str, message: str, causes: list[dict[str, str]] | None = None, retry: int | None = None
    ):
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.causes = causes or []
        self.retry = retry

    def status(self) -> dict[str, Any]:
        details: dict[str, Any] = {"causes": self.causes} if self.causes else {}
        if self.retry is not None:
            details["retryAfterSeconds"] = self.retry
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "details": details,
            "code": self.code,
        }


def not_found(plural: str, name: str) -> Failure:
    return Failure(404, "NotFound", f'{plural} "{name}" not found')


def invalid(kind: str, name: str, fields: list[tuple[str, str]]) -> Failure:
    causes = [{"reason": "FieldValueInvalid", "message": text, "field": field} for field, text in fields]
    told = "; ".join(f"{field}: {text}" for field, text in fields[:5])
    return Failure(422, "Invalid", f'{kind} "{name}" is invalid: {told}', causes)


def conflict(plural: str, name: str, why: str) -> Failure:
    return Failure(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": {why}')
