"""What an API server says when it does not do as asked."""

from __future__ import annotations

import json
from typing import Any

from berth.compute.provider import ProviderError


class Refusal(ProviderError):
    """The API server answered, and the answer is no. `reason` is Kubernetes' own: "NotFound", "Conflict", "Invalid" …"""

    def __init__(self, code: int, reason: str, message: str, fields: tuple[str, ...] = ()) -> None:
        named = f" ({', '.join(fields[:4])})" if fields else ""
        super().__init__(f"The cluster refused: {reason or code}{named}.")
        self.code = code
        self.reason = reason
        self.message = message  # the server's words; they may quote the object, so they are only searched, never shown
        self.fields = fields

    @property
    def not_found(self) -> bool:
        return self.code == 404

    @property
    def conflict(self) -> bool:
        return self.code == 409

    @property
    def gone(self) -> bool:
        """A resource version that is too old to go on from."""
        return self.code == 410

    @property
    def over_quota(self) -> bool:
        return self.code == 403 and "exceeded quota" in self.message

    @property
    def against_policy(self) -> bool:
        """Pod security or another admission policy says no."""
        return self.code == 403 and ("violates PodSecurity" in self.message or "denied" in self.message)


def refusal(code: int, body: bytes) -> Refusal:
    """From an answer's status and body, which is a Status object where it comes from the API server itself."""
    try:
        status: Any = json.loads(body)
    except ValueError:
        status = None
    if not isinstance(status, dict):
        return Refusal(code, "", "")
    details = status.get("details")
    causes = (details.get("causes") if isinstance(details, dict) else None) or []
    fields = tuple(str(cause.get("field", "")) for cause in causes if isinstance(cause, dict) and cause.get("field"))
    return Refusal(
        int(status.get("code") or code), str(status.get("reason", "")), str(status.get("message", "")), fields
    )
