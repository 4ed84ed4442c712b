"""Deployments as gateways see them."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from berth_gateway.contract.limits import Limits, Price


class RouteState(StrEnum):
    """What a request for this deployment meets."""

    READY = "ready"  # at least one replica answers
    LOADING = "loading"  # replicas are being started: the request is held, then 503 model_loading
    ASLEEP = "asleep"  # no replica, because nobody asked for one: the request wakes it and is held
    PAUSED = "paused"  # stopped by its owner: 403 deployment_paused
    UNAVAILABLE = "unavailable"  # should run, but nothing answers and nothing is starting: 503 overloaded


class Replica(msgspec.Struct, frozen=True):
    """One running engine. `secret` is the bearer token that this engine alone accepts."""

    name: str
    host: str
    port: int
    secret: str
    slots: int | None = None  # requests that it works on side by side; None: not known, so nothing waits at the gateway
    revision: int | None = None  # None: the route's


class RevisionWeight(msgspec.Struct, frozen=True):
    """A revision's share of a route's requests: `weight` of the sum of all weights. Revisions without one get none while others
    can answer."""

    revision: int
    weight: int


class Shadow(msgspec.Struct, frozen=True):
    """Replicas that get copies of `percent` of the requests. Their answers are dropped and nothing of them is metered."""

    replicas: tuple[Replica, ...]
    percent: int


class Route(msgspec.Struct, frozen=True):
    """A deployment as the gateway sees it, called `name` (`org/deployment`) by clients."""

    name: str
    org_id: str
    deployment_id: str
    revision: int
    state: RouteState
    engine: str
    engine_model: str  # what the engine calls the model; written into the body that goes upstream
    # Of "chat/completions", "completions", "responses", "messages" (with its count_tokens), "embeddings", "rerank",
    # "audio/transcriptions", "audio/translations".
    endpoints: tuple[str, ...]
    context_length: int  # tokens, prompt and completion together, for one request
    created: int  # Unix seconds
    replicas: tuple[Replica, ...] = ()
    ready_in_seconds: int | None = None  # usual time left, when loading
    extra_fields: tuple[str, ...] = ()  # body fields that the deployment's owner admits beyond the built-in table
    limits: Limits | None = None
    weights: tuple[RevisionWeight, ...] = ()  # empty: the revisions that serve share alike
    shadow: Shadow | None = None
    asleep_since: int | None = None  # Unix milliseconds; tells one sleep from the next
    hold_seconds: int = 300  # how long a request waits for a deployment that is asleep or starting
    recorded: bool = True  # False: none of its requests is kept, whatever the organisation wishes
    apart_for: str = (
        ""  # set within a gateway, never in a snapshot: the API key whose prefixes are kept apart from all others'
    )
    adapter: int | None = (
        None  # its number among the adapters that its replicas' engine has loaded; None: the base model
    )
    carries: bool = False  # the engine has loaded adapters, which a request for the base model must have switched off
    prices: tuple[Price, ...] = ()  # the valid one and those announced after it, in order; without any, nothing is paid
