"""No organisation sees, changes or infers anything of another's: all routes, with foreign ids in path, query and body (A1, K3, A8)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from drf_spectacular.generators import SchemaGenerator

from tests import make
from tests.routes import Route, World, answer_of, api_routes, call, code_of, org_routes, parameters

pytestmark = pytest.mark.django_db
UNKNOWN = {"name": "no-such-thing", "period": "1999-01", "number": "999999"}


@functools.cache
def schema() -> dict[str, Any]:
    return dict(SchemaGenerator().get_schema(request=None, public=True))


def operation(route: Route, method: str) -> dict[str, Any]:
    found = [
        operations[method.lower()]
        for address, operations in schema()["paths"].items()
        if _shape(address) == _shape(route.pattern) and method.lower() in operations
    ]
    return dict(found[0]) if found else {}


def _shape(address: str) -> tuple[str, ...]:
    return tuple("{}" if part[:1] in {"<", "{"} else part for part in address.strip("/").split("/"))


def resolve(node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = schema()["components"]["schemas"][node["$ref"].rsplit("/", 1)[1]]
    parts = node.get("allOf") or []
    return resolve(parts[0]) if len(parts) == 1 else node


def body_form(route: Route, method: str) -> dict[str, Any] | None:
    content = operation(route, method).get("requestBody", {}).get("content", {})
    return resolve(content["application/json"]["schema"]) if "application/json" in content else None


@dataclass(frozen=True)
class Reference:
    """A place in a body that names something of an organisation's."""

    path: tuple[str, ...]
    many: bool


REFERENCE_NAMES = {"model", "deployment", "key", "version_id", "replica"}


def references(form: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[Reference]:
    for name, raw in form.get("properties", {}).items():
        node = resolve(raw)
        inner = resolve(node.get("items", {}))
        if node.get("type") == "object":
            yield from references(node, (*path, name))
        elif node.get("format") == "uuid" or inner.get("format") == "uuid" or name in REFERENCE_NAMES:
            yield Reference((*path, name), many=node.get("type") == "array")


def own_value(world: World, name: str) -> Any:
    values = {
        "deployment_ids": world.deployment.pk,
        "deployment": world.deployment.name,
        "artefact_id": world.artefact.pk,
        "model": world.model.name,
        "key": world.key.pk,
        "subject_id": world.deployment.pk,
        "excluded_deployment_ids": world.deployment.pk,
        "excluded_key_ids": world.key.pk,
    }
    assert name in values, f"Teach tests/platform/test_tenancy.py what a body's {name!r} refers to."
    return values[name]


def needed(world: World, form: dict[str, Any]) -> dict[str, Any]:
    """A body that would be accepted, of required fields only."""
    samples: dict[str, Any] = {
        "name": "swept",
        "email": "swept@example.org",
        "role": "viewer",
        "model": world.model.name,
        "source": "sample",
        "scope": "deployment",
        "period": "day",
        "amount": "5",
        "quantization": "Q8_0",
        "peaks": [],
    }
    required = form.get("required", [])
    assert set(required) <= samples.keys(), (
        f"Teach tests/platform/test_tenancy.py a sample of {set(required) - samples.keys()}."
    )
    return {name: samples[name] for name in required}


def put(body: dict[str, Any], reference: Reference, value: Any) -> dict[str, Any]:
    at = body
    for name in reference.path[:-1]:
        at = at.setdefault(name, {})
    at[reference.path[-1]] = [value] if reference.many else value
    return body


def with_body() -> list[tuple[Route, str]]:
    """Also acts that take nothing: they must refuse what is sent all the same."""
    routes = [r for r in api_routes() if r.view_class is not None and not str(r).startswith("/auth/")]
    return [(route, method) for route in routes for method in route.methods if method not in {"GET", "DELETE"}]


def tried(client: Any, method: str, address: str, content: Any = None) -> tuple[tuple[int, Any], int, Any]:
    """Answer, number of queries, response. What it changed is undone."""
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        response = call(client, method, address, content)
        answer = answer_of(response)
        transaction.set_rollback(True)
    return answer, len(queries), response


def unknown_for(route: Route, parameter: str) -> str:
    if f"<uuid:{parameter}>" in route.pattern:
        return str(make.new_id())
    if f"<int:{parameter}>" in route.pattern:
        return UNKNOWN["number"]
    return UNKNOWN["period"] if "period" in parameter else UNKNOWN["name"]


PATHS = [r for r in org_routes() if len(parameters(r)) > 1]


@pytest.mark.threat("A1")
@pytest.mark.parametrize("route", PATHS, ids=str)
def test_foreign_ids_in_a_path_are_unknown_ids(route: Route) -> None:
    own, other = World(), World()
    client = make.confirmed(make.client(own.owner.user))
    for parameter in parameters(route)[1:]:
        if parameter in {"period", "number"}:
            continue  # the same words mean something in every organisation; nothing can be foreign
        foreign = other.address(route, org=own.org.slug)
        values = dict(zip(parameters(route), (p for p in _filled(route, foreign)), strict=True))
        for method in route.actions:
            body = needed(own, body_form(route, method) or {})
            theirs = tried(client, method, own.address(route, **{parameter: values[parameter]}), body)
            random = tried(client, method, own.address(route, **{parameter: unknown_for(route, parameter)}), body)
            assert theirs[0] == random[0], f"{method}: a foreign {parameter} answers otherwise than an unknown one"
            assert theirs[0][0] == 404 and theirs[1] == random[1]
            assert method == "GET" or other_is_whole(other)


def _filled(route: Route, address: str) -> list[str]:
    pairs = zip(route.pattern.strip("/").split("/"), address.strip("/").split("/"), strict=True)
    return [value for part, value in pairs if part.startswith("<")]


def other_is_whole(other: World) -> bool:
    other.key.refresh_from_db()
    other.deployment.refresh_from_db()
    other.developer.refresh_from_db()
    return (
        other.key.revoked_at is None and other.deployment.desired == "running" and other.developer.role == "developer"
    )


BODIES = [
    (route, method, reference)
    for route, method in with_body()
    for reference in references(body_form(route, method) or {})
    if route.is_org
]


@pytest.mark.threat("A1")
@pytest.mark.parametrize(("route", "method", "reference"), BODIES, ids=lambda p: ".".join(getattr(p, "path", [str(p)])))
def test_foreign_ids_in_a_body_are_unknown_ids(route: Route, method: str, reference: Reference) -> None:
    own, other = World(), World()
    client, form, name = make.client(own.owner.user), body_form(route, method) or {}, reference.path[-1]

    def answer(value: Any) -> tuple[int, str]:
        status, content = tried(client, method, own.address(route), put(needed(own, form), reference, value))[0]
        return status, str(content).replace(str(value), "<value>")  # saying again what was asked tells nothing

    foreign = answer(own_value(other, name))
    unknown = answer(make.new_id() if isinstance(own_value(own, name), type(make.new_id())) else UNKNOWN["name"])
    assert foreign == unknown
    assert foreign[0] < 500
    assert answer(own_value(own, name)) != foreign, "the control: one's own thing is answered otherwise"


QUERIES = [
    (route, parameter["name"])
    for route in org_routes()
    for parameter in operation(route, "GET").get("parameters", [])
    if parameter["in"] == "query"
    and parameter["name"] not in {"cursor", "limit", "topics"}
    and resolve(parameter["schema"]).get("type") == "string"
    and not {"enum", "pattern"} & resolve(parameter["schema"]).keys()
    and resolve(parameter["schema"]).get("format") not in {"date-time", "date"}
]


@pytest.mark.threat("A1")
@pytest.mark.parametrize(("route", "name"), QUERIES, ids=str)
def test_foreign_ids_in_a_query_are_unknown_ids(route: Route, name: str) -> None:
    own, other = World(), World()
    client, address = make.client(own.owner.user), own.address(route)

    def answer(value: Any) -> tuple[int, Any]:
        status, content = tried(client, "GET", f"{address}?{name}={value}")[0]
        return status, str(content).replace(str(value), "<value>")

    ids = [other.deployment.pk, other.key.pk, other.artefact.pk, other.event.pk]
    assert len({answer(value) for value in [*ids, make.new_id()]}) == 1
    names = [other.deployment.name, other.model.name, other.replica.name]
    assert len({answer(value) for value in [*names, UNKNOWN["name"]]}) == 1


OWNERSHIP = {
    "organisation": "x", "org": "x", "org_id": "x", "owner": "x", "created_by": "x", "role": "owner", "scopes": ["*"],
    "is_staff": True, "is_operator": True, "id": "x", "created_at": "2020-01-01T00:00:00Z",
}  # fmt: skip


@pytest.mark.threat("K3")
@pytest.mark.parametrize(("route", "method"), with_body(), ids=str)
def test_no_body_sets_what_it_does_not_name(route: Route, method: str) -> None:
    world = World()
    world.owner.user.is_operator = "/operator/" in route.pattern or str(route) == "/orgs"
    world.owner.user.save()
    client = make.confirmed(make.client(world.owner.user))
    form = body_form(route, method) or {}
    for name, value in OWNERSHIP.items():
        if name in form.get("properties", {}):
            continue
        (status, content), _, _ = tried(client, method, world.address(route), {name: value})
        error = content.get("error", {})
        assert (status, error.get("code"), error.get("field")) == (400, "unknown_field", name)


@pytest.mark.threat("K3")
@pytest.mark.parametrize("route", [r for r in api_routes() if r.view_class is not None], ids=str)
def test_every_changing_method_documents_its_body(route: Route) -> None:
    for method in set(route.methods) - {"GET", "DELETE"}:
        raw = "application/octet-stream" in operation(route, method).get("requestBody", {}).get("content", {})
        known = body_form(route, method) is not None or raw or method == "POST"
        assert known, f"{method} {route} names no request serializer"


LISTS = [
    r
    for r in api_routes()
    if r.view_class is not None and "GET" in r.methods and not str(r).startswith(("/csrf", "/health"))
]


@pytest.mark.threat("A8")
@pytest.mark.parametrize("route", LISTS, ids=str)
def test_nothing_of_a_query_string_reaches_the_database_unnamed(route: Route) -> None:
    world = World()
    world.owner.user.is_operator = True
    world.owner.user.save()
    client, address = make.client(world.owner.user), world.address(route)
    plain = tried(client, "GET", address)
    for query in ("ordering=user__password", "metadata__a'=1", "org__slug__startswith=a", "id__in=1"):
        answer, queries, response = tried(client, "GET", f"{address}?{query}")
        assert code_of(response) == "unknown_field" or (answer == plain[0] and queries == plain[1]), query
