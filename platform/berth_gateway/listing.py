"""/v1/models: what a key may call, answered from the snapshot."""

from __future__ import annotations

from typing import Any

from berth_gateway.admit import Caller, callable_routes
from berth_gateway.contract import Route
from berth_gateway.errors import unknown_model
from berth_gateway.snapshot import View


def all_models(view: View, caller: Caller) -> dict[str, Any]:
    routes = sorted(callable_routes(view, caller), key=lambda route: route.name)
    return {"object": "list", "data": [_model(caller, route) for route in routes]}


def one_model(view: View, caller: Caller, name: str) -> dict[str, Any]:
    """Raises Refusal when this key cannot call it, whoever's it is."""
    for route in callable_routes(view, caller):
        if route.name == name:
            return _model(caller, route)
    raise unknown_model(name)


def _model(caller: Caller, route: Route) -> dict[str, Any]:
    return {"id": route.name, "object": "model", "created": route.created, "owned_by": caller.org.slug}
