"""Every route of the management API, found by walking the URL resolver, so that a new route is tested without being listed.

A route's parameters are filled from a `World`: one organisation with one of everything. What a parameter means is told by the
literal before it in the address (`keys/<uuid:key_id>` is a key), so a new kind of thing needs one line in `World.value_for`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.views import APIView

from berth.catalog.models import Conversion
from berth.orgs.models import Invitation, Organisation
from berth.orgs.permissions import Action
from berth.orgs.views import OrgView
from tests import make

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
PARAMETER = re.compile(r"<(?:(?P<kind>\w+):)?(?P<name>\w+)>")


@dataclass(frozen=True)
class Route:
    pattern: str  # "/api/v1/orgs/<slug:org>/keys"
    view: Callable[..., Any]

    @property
    def view_class(self) -> type[APIView] | None:
        return cast("type[APIView] | None", getattr(self.view, "view_class", None) or getattr(self.view, "cls", None))

    @property
    def is_org(self) -> bool:
        return "<slug:org>" in self.pattern and "/operator/" not in self.pattern

    @property
    def actions(self) -> dict[str, Action]:
        """Method to action; empty for views outside of organisations."""
        source = self.view_class if self.view_class is not None else self.view
        return dict(getattr(source, "actions", {}))

    @property
    def methods(self) -> list[str]:
        if self.view_class is None or not issubclass(self.view_class, APIView):
            return list(self.actions)
        return [m for m in METHODS if hasattr(self.view_class, m.lower())]

    def __str__(self) -> str:
        return self.pattern.removeprefix("/api/v1")


def api_routes() -> list[Route]:
    return [route for route in _walk(get_resolver().url_patterns, "/") if route.pattern.startswith("/api/")]


def org_routes() -> list[Route]:
    return [route for route in api_routes() if route.is_org]


def _walk(patterns: list[URLPattern | URLResolver], prefix: str) -> Iterator[Route]:
    for entry in patterns:
        address = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from _walk(entry.url_patterns, address)
        else:
            yield Route(address, entry.callback)


class World:
    """An organisation with its owner and one of everything that an address or a body can name."""

    def __init__(self) -> None:
        self.org: Organisation = make.org()
        self.owner = make.member(self.org, "owner")
        self.developer = make.member(self.org, "developer")
        self.key, self.secret = make.key(self.owner)
        self.deployment = make.deployment(self.org)
        self.replica = make.replica(self.deployment)
        assert self.deployment.revision is not None
        self.revision = self.deployment.revision
        self.model = self.revision.version.model
        self.artefact = self.revision.artefact
        self.model_import = make.model_import(self.org)
        self.conversion = Conversion.objects.for_org(self.org).create(
            org=self.org, source=self.artefact, format="gguf", quantization="Q6_K"
        )
        self.credential = make.source_credential(self.org)
        self.event = make.usage_event(self.deployment, self.key)
        self.budget = make.budget(self.org, scope="deployment", subject_id=self.deployment.pk)
        self.invitation = Invitation.objects.create(
            org=self.org,
            email=f"invited@{self.org.slug}.example",
            role="viewer",
            token_digest=self.org.pk.bytes * 2,
            invited_by=self.owner.user,
            expires_at=make.NOON.replace(year=2126),
        )

    def value_for(self, before: str, name: str) -> str:
        """What a parameter after the literal `before` stands for."""
        values: dict[str, Any] = {
            "orgs": self.org.slug,
            "members": self.developer.pk,
            "invitations": self.invitation.pk,
            "keys": self.key.pk,
            "models": self.model.name,
            "deployments": self.deployment.name,
            "replicas": self.replica.name,
            "revisions": self.revision.number,
            "events": self.event.pk,
            "statements": "2026-11",
            "budgets": self.budget.pk,
            "lines": make.new_id(),
            "conversions": self.conversion.pk,
            "imports": self.model_import.pk,
            "files": self.model_import.files.get().name,
            "parts": 0,
            "source-credentials": self.credential.name,
            "versions": self.revision.version.number,
            "records": make.new_id(),
        }
        assert before in values, f"Teach tests/routes.py what <{name}> after {before}/ is."
        return str(values[before])

    def address(self, route: Route, **overrides: str) -> str:
        """The route's address with everything filled in; `overrides` by parameter name."""
        parts: list[str] = []
        for part in route.pattern.strip("/").split("/"):
            found = PARAMETER.fullmatch(part)
            if found is None:
                parts.append(part)
            else:
                name = found["name"]
                parts.append(overrides.get(name) or self.value_for(parts[-1], name))
        return "/" + "/".join(parts)


def call(client: Client, method: str, address: str, content: Any = None) -> Any:
    """Sends JSON; GET sends nothing."""
    if method == "GET":
        return client.get(address)
    return client.generic(method, address, _json({} if content is None else content), "application/json")


def answer_of(response: Any) -> tuple[int, Any]:
    """Status and body, without what differs from request to request."""
    if getattr(response, "streaming", False):
        return response.status_code, None
    if not response.headers.get("Content-Type", "").startswith("application/json"):
        return response.status_code, response.content
    content = response.json()
    if isinstance(content, dict) and isinstance(content.get("error"), dict):
        content["error"].pop("request_id", None)
    if isinstance(content, dict):
        content.pop("plan_id", None)  # is signed with the second it was made in
    return response.status_code, content


def code_of(response: Any) -> str | None:
    _, content = answer_of(response)
    return content["error"]["code"] if isinstance(content, dict) and "error" in content else None


def parameters(route: Route) -> list[str]:
    return [found["name"] for found in PARAMETER.finditer(route.pattern)]


def of_class(route: Route) -> bool:
    return route.view_class is not None and issubclass(route.view_class, OrgView)


def _json(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, default=str)
