"""The endpoints, and what becomes of a request body: read strictly, bounded, and written anew for the engine.

An engine only ever gets bytes that were encoded here.
"""

from __future__ import annotations

from berth_gateway.contract import Route
from berth_gateway.endpoint import Body, Endpoint, Prepared
from berth_gateway.reading import read
from berth_gateway.surfaces import audio, embeddings, generate, messages, rerank, responses

__all__ = ["ENDPOINTS", "Body", "Endpoint", "Prepared", "prepare", "read"]

ENDPOINTS: dict[str, Endpoint] = {
    path: endpoint
    for endpoints in (
        generate.ENDPOINTS,
        responses.ENDPOINTS,
        messages.ENDPOINTS,
        embeddings.ENDPOINTS,
        rerank.ENDPOINTS,
        audio.ENDPOINTS,
    )
    for endpoint in endpoints
    for path in (endpoint.path, *endpoint.aliases)
}


def prepare(endpoint: Endpoint, body: Body, route: Route) -> Prepared:
    """What the engine will be sent. Raises Refusal for what this deployment does not admit. Changes `body`."""
    return endpoint.prepare(endpoint, body, route)
