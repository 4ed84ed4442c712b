"""What an API server says when it does not do as asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from berth.compute.provider import ProviderError, ProviderUnavailable

_POLICIES: Final = (
    "violates PodSecurity",
    "denied the request",  # a webhook, in the words of the API server
    "denied request",  # a ValidatingAdmissionPolicy
    "failed quota",  # one that wants limits to be named
    "usage per",  # a LimitRange
)
_NO_RIGHT: Final = re.compile(r'is forbidden: User ".*" cannot ')


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
        """Pod security, a limit range, a policy or a webhook says no: each with a status code of its own choice."""
        return 400 <= self.code < 500 and any(words in self.message for words in _POLICIES)

    @property
    def not_permitted(self) -> bool:
        """Our account may not do this."""
        return self.code == 403 and _NO_RIGHT.search(self.message) is not None

    @property
    def namespace_ending(self) -> bool:
        return self.code == 403 and "because it is being terminated" in self.message

    @property
    def not_the_same(self) -> bool:
        """There is another object of this name than the one that was meant."""
        return self.conflict and "Precondition failed" in self.message


def refusal(code: int, body: bytes, cluster: str) -> Refusal | ProviderUnavailable:
    """From an answer's status and body, which is a Status object where it comes from the API server itself.

    A server in trouble, one that is too busy, and one that does not know us are all away: trying again later may help.
    """
    try:
        status: Any = json.loads(body)
    except ValueError:
        status = None
    told = status if isinstance(status, dict) else {}
    number = int(told.get("code") or code)
    reason = str(told.get("reason", ""))
    if number == 401:
        return ProviderUnavailable(f"Cluster {cluster} does not accept our credentials. Renew them.")
    if number >= 500 or (number == 429 and not _says_budget(told)):
        return ProviderUnavailable(f"The API server of cluster {cluster} cannot answer now ({reason or number}).")
    return Refusal(number, reason, str(told.get("message", "")), tuple(_fields(told)))


def _fields(status: dict[str, Any]) -> Iterator[str]:
    details = status.get("details")
    for cause in (details.get("causes") if isinstance(details, dict) else None) or []:
        if isinstance(cause, dict) and cause.get("field"):
            yield str(cause["field"])


def _says_budget(status: dict[str, Any]) -> bool:
    """An eviction that a disruption budget forbids says 429 too, and means "no"."""
    return "DisruptionBudget" in json.dumps(status.get("details") or {})
