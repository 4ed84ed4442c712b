"""A request's way to its exchange: judged by its head before the body is read, and by its body before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from berth_gateway import admit, cors, dialect, listing, paths, surface
from berth_gateway.account import Facts
from berth_gateway.contract import RouteState
from berth_gateway.endpoint import Endpoint
from berth_gateway.errors import Refusal
from berth_gateway.head import RequestHead
from berth_gateway.paths import Place
from berth_gateway.surfaces.common import for_caller
from berth_gateway.trace import Trace

if TYPE_CHECKING:
    from berth_gateway.gateway import Gateway


JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that needs no engine. `headers`: further lines, each ended by CRLF."""

    status: int
    content_type: bytes
    body: bytes
    headers: bytes = b""


def judge_head(
    gateway: Gateway, head: RequestHead, *, admin: bool, loopback: bool, peer: str | None = None
) -> tuple[Place, admit.Caller | None]:
    """Everything that can be judged before the body is read. Raises Refusal.

    `admin`: the connection came in on the port for metrics, where there is nothing else.
    """
    admit.refuse_key_in_url(head.target)
    place = paths.find(head.target, anthropic=dialect.is_anthropic(head))
    shows_metrics = admin or (loopback and gateway.config.metrics_on_main_port)
    if (place.kind == "metrics" and not shows_metrics) or (place.kind != "metrics" and admin):
        raise Refusal("unknown_url", "Unknown URL.")
    if head.method == "OPTIONS" and head.preflight and cors.is_listed(head.origin, gateway.store.view, None):
        return Place("preflight"), None
    paths.check_method(place, head.method)
    if head.length > gateway.config.max_body:
        raise too_large(gateway)
    if place.kind not in ("models", "model", "generate"):
        return place, None
    caller = admit.identify(gateway.usable_view(), head, gateway.wall())
    admit.check_address(caller, peer, head, gateway.config.trusted_proxies)
    return place, caller


def admit_request(
    gateway: Gateway,
    endpoint: Endpoint,
    caller: admit.Caller,
    request_id: str,
    data: bytes,
    patience: float | None = None,
    trace: Trace | None = None,
) -> Facts:
    """The request as it will be sent and accounted for. Raises Refusal. `patience`: seconds that it may wait for a replica."""
    gateway.check_accepting()
    view = gateway.usable_view()
    body = surface.read(endpoint, data)
    route = admit.find_route(view, caller, body.model)
    admit.check_serves(route, endpoint)
    gateway.check_held(caller.key.key_id, route)
    if route.state is RouteState.ASLEEP and (patience == 0 or route.hold_seconds <= 0):
        gateway.places.wake(route)  # for the client's next try
    admit.check_ready(route, patience)
    return Facts(
        request_id=request_id,
        event_id=gateway.event_id(request_id),
        caller=caller,
        route=route,
        endpoint=endpoint,
        prepared=surface.prepare(endpoint, body, for_caller(route, caller)),
        accepted_at=gateway.wall(),
        started=gateway.now(),
        patience=patience,
        trace=trace,
    )


def answer_at_once(gateway: Gateway, place: Place, caller: admit.Caller | None) -> Answer:
    """What the gateway itself knows. Raises Refusal."""
    if place.kind == "preflight":
        return Answer(204, b"", b"", cors.PREFLIGHT)
    if place.kind == "metrics":
        return Answer(200, b"text/plain; version=0.0.4; charset=utf-8", gateway.metrics())
    if place.kind == "health":
        return Answer(200, JSON, b'{"status":"ok"}')
    if caller is None:
        gateway.check_ready()
        return Answer(200, JSON, b'{"status":"ready"}')
    view = gateway.usable_view()
    if place.kind == "models":
        return Answer(200, JSON, gateway.encode(listing.all_models(view, caller, anthropic=place.anthropic)))
    one = listing.one_model(view, caller, place.model or "", anthropic=place.anthropic)
    return Answer(200, JSON, gateway.encode(one))


def too_large(gateway: Gateway) -> Refusal:
    return Refusal("request_too_large", f"The body is larger than {gateway.config.max_body} bytes.")
