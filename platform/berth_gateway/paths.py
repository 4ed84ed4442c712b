"""Which of the few known places a request line names. An allow-list: whatever is not here is 404, engines' own doors too."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from berth_gateway.endpoint import Endpoint
from berth_gateway.errors import Refusal
from berth_gateway.surface import ENDPOINTS

_AUTHORITY = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_KNOWN_TAILS = ("/models", *(path.removeprefix("/v1") for path in ENDPOINTS if path.startswith("/v1/")))
_PLAIN = {"/healthz": "health", "/readyz": "ready", "/metrics": "metrics"}


@dataclass(frozen=True, slots=True)
class Place:
    """`kind`: generate, models, model, health, ready, metrics or preflight."""

    kind: str
    endpoint: Endpoint | None = None
    model: str | None = None
    allow: str = "GET, HEAD"
    anthropic: bool = False  # of the shapes of /v1/models


def find(target: str, *, anthropic: bool = False) -> Place:
    """The place a request target names, whatever the method. Raises Refusal (404)."""
    path = (
        _AUTHORITY.sub("", target, count=1).partition("?")[0]
        if target[:4].lower() == "http"
        else target.partition("?")[0]
    )
    if len(path) > 1 and path.endswith("/"):
        path = path[:-1]
    endpoint = ENDPOINTS.get(path)
    if endpoint is not None:
        return Place("generate", endpoint=endpoint, allow="POST")
    if path == "/v1/models":
        return Place("models", anthropic=anthropic)
    if path.startswith("/v1/models/"):
        return Place("model", model=unquote(path[len("/v1/models/") :]), anthropic=anthropic)
    if path in _PLAIN:
        return Place(_PLAIN[path])
    raise Refusal("unknown_url", _hint(path))


def _hint(path: str) -> str:
    if path.startswith("/v1/v1"):
        return (
            "Unknown URL: it has /v1 twice. Set the base URL so that it ends in /v1 once, without the endpoint's path."
        )
    if path.startswith("//"):
        return "Unknown URL: it begins with two slashes. Set the base URL without a slash at its end."
    if path.startswith(_KNOWN_TAILS):
        return "Unknown URL: /v1 is missing. Set the base URL so that it ends in /v1."
    return f"Unknown URL. This gateway serves /v1/models, {', '.join(ENDPOINTS)}."


def check_method(place: Place, method: str) -> None:
    """Raises Refusal (405) with what is allowed."""
    if method not in place.allow.split(", "):
        raise Refusal(
            "method_not_allowed", f"This URL does not take {method[:16]}. Use {place.allow}.", allow=place.allow
        )
