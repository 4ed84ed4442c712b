"""/v1/models: what a key may call, answered from the snapshot, in the form that the client's kind expects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from berth_gateway.admit import Caller, callable_routes
from berth_gateway.contract import Route
from berth_gateway.errors import unknown_model
from berth_gateway.snapshot import View


def all_models(view: View, caller: Caller, *, anthropic: bool = False) -> dict[str, Any]:
    routes = sorted(callable_routes(view, caller), key=lambda route: route.name)
    data = [_model(caller, route, anthropic=anthropic) for route in routes]
    if not anthropic:
        return {"object": "list", "data": data}
    ends = {"first_id": routes[0].name, "last_id": routes[-1].name} if routes else {"first_id": None, "last_id": None}
    return {"data": data, "has_more": False, **ends}


def one_model(view: View, caller: Caller, name: str, *, anthropic: bool = False) -> dict[str, Any]:
    """Raises Refusal when this key cannot call it, whoever's it is."""
    for route in callable_routes(view, caller):
        if route.name == name:
            return _model(caller, route, anthropic=anthropic)
    raise unknown_model(name)


def _model(caller: Caller, route: Route, *, anthropic: bool) -> dict[str, Any]:
    if anthropic:
        since = datetime.fromtimestamp(route.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"id": route.name, "type": "model", "display_name": route.name, "created_at": since}
    return {"id": route.name, "object": "model", "created": route.created, "owned_by": caller.org.slug}
