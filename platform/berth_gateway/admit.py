"""Policy before the first byte: who calls, and whether this request may be made. Plain functions, no I/O.

Whatever is added here (limits, budgets, queues) is decided before a request costs anything.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl

from msgspec import Struct

from berth_gateway.addresses import Network, admits, client_address
from berth_gateway.contract import KeyInfo, OrgInfo, Route, RouteState
from berth_gateway.endpoint import Endpoint
from berth_gateway.errors import Refusal, bad_key, unknown_model
from berth_gateway.head import RequestHead
from berth_gateway.snapshot import View

_TOKEN = re.compile(rb"[A-Za-z0-9_.~+/=-]{8,256}\Z")
_KEYS_IN_URL = frozenset({"api_key", "api-key", "apikey", "access_token", "key", "token"})


class Caller(Struct, frozen=True):
    """A good key and the organisation it belongs to."""

    key: KeyInfo
    org: OrgInfo


def refuse_key_in_url(target: str) -> None:
    """A key in a URL ends in logs and histories; it is refused whether or not it is good."""
    _, _, query = target.partition("?")
    if query and any(name.lower() in _KEYS_IN_URL for name, _ in parse_qsl(query, keep_blank_values=True)):
        raise Refusal("key_in_url", "API keys are not accepted in the URL. Send 'Authorization: Bearer <key>'.")


def identify(view: View, head: RequestHead, now: float) -> Caller:
    """Who calls. Raises Refusal: 401 for a key that is not good, 403 for one that may not call.

    The header is checked for length and alphabet and then only ever hashed.
    """
    token = _token(head)
    if token is None:
        raise bad_key()
    key = view.keys.get(hashlib.sha256(token).digest())
    org = view.orgs.get(key.org_id) if key is not None else None
    if key is None or org is None:
        raise bad_key()
    if key.expires_at is not None and now >= key.expires_at:
        raise Refusal("api_key_expired", "This API key has expired. Create a new one in the dashboard.")
    if org.suspended:
        raise Refusal(
            "organization_suspended", "This organization is suspended. Ask its owner to contact the operator."
        )
    if "inference" not in key.scopes:
        raise Refusal("insufficient_permissions", "This API key lacks the scope 'inference'.")
    return Caller(key, org)


def _token(head: RequestHead) -> bytes | None:
    """The one key a request carries; None when there is none, it is malformed, or two differ."""
    found: set[bytes] = set()
    for value in head.authorizations:
        scheme, _, token = value.strip().partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        found.add(token.strip())
    found.update(value.strip() for value in head.api_keys)
    if len(head.authorizations) > 1 or len(head.api_keys) > 1 or len(found) != 1:
        return None
    token = found.pop()
    return token if _TOKEN.match(token) else None


def check_address(caller: Caller, peer: str | None, head: RequestHead, proxies: Sequence[Network]) -> None:
    """Raises Refusal for a key that may not be used from where the request comes from."""
    if not caller.key.networks:
        return
    address = client_address(peer, head.forwarded, proxies)
    if not admits(caller.key.networks, address):
        shown = "an address that is not known" if address is None else str(address)
        raise Refusal("ip_not_authorized", f"This API key may not be used from {shown}. Its owner can change that.")


def still_admitted(view: View, caller: Caller, route: Route, now: float) -> bool:
    """Whether a running request may go on under a newer view."""
    key = view.keys.get(caller.key.digest)
    org = view.orgs.get(caller.org.org_id)
    if key is None or org is None or org.suspended or "inference" not in key.scopes:
        return False
    if key.expires_at is not None and now >= key.expires_at:
        return False
    return key.deployment_ids is None or route.deployment_id in key.deployment_ids


def callable_routes(view: View, caller: Caller) -> list[Route]:
    """What this key may call, also what is loading, paused or down."""
    allowed = caller.key.deployment_ids
    return [
        route
        for route in view.routes.values()
        if route.org_id == caller.org.org_id and (allowed is None or route.deployment_id in allowed)
    ]


def find_route(view: View, caller: Caller, name: str) -> Route:
    """The deployment called `name`. Another organisation's is as unknown as one that does not exist."""
    route = view.routes.get(name)
    if route is None or route.org_id != caller.org.org_id:
        raise unknown_model(name)
    allowed = caller.key.deployment_ids
    if allowed is not None and route.deployment_id not in allowed:
        raise Refusal("model_not_allowed", f"This API key may not call the model '{route.name}'.", param="model")
    return route


def check_serves(route: Route, endpoint: Endpoint) -> None:
    """Raises Refusal when the model, or its engine, has no such thing."""
    if endpoint.served_as in route.endpoints:
        return
    serves = ", ".join(f"/v1/{e}" for e in route.endpoints) or "nothing"
    code = "unsupported_model" if endpoint.other_kind else "unsupported_endpoint"
    raise Refusal(
        code,
        f"The model '{route.name}' does not serve {endpoint.path}. It serves: {serves}.",
        param="model" if endpoint.other_kind else None,
    )


CLIENT_MARGIN = 5.0  # seconds before its client gives up that a waiting request is answered


def patience_of(head: RequestHead | None) -> float | None:
    """How long a request may wait for a replica, by what its client says; None when it does not say."""
    if head is None or head.read_timeout is None:
        return None
    return max(0.0, head.read_timeout - CLIENT_MARGIN)


def check_ready(route: Route, patience: float | None = None) -> None:
    """Raises Refusal unless a request can be sent to a replica, now or after having been held while the deployment starts."""
    if route.state is RouteState.PAUSED:
        raise Refusal("deployment_paused", f"{route.name} is paused. Resume it in the dashboard.", param="model")
    if route.state in (RouteState.LOADING, RouteState.ASLEEP):
        if route.hold_seconds > 0 and (patience is None or patience > 0):
            return
        left = route.ready_in_seconds
        about = f"; it should be ready in about {left} s" if left else ""
        raise Refusal("model_loading", f"{route.name} is starting{about}.", param="model", retry_after=left)
    if route.state is RouteState.UNAVAILABLE or not route.replicas:
        raise Refusal("overloaded", f"{route.name} has no replica that answers right now. Try again shortly.")
