"""docs/openapi.yaml is what the code says, without a warning of the generator."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from django.core.management import call_command
from drf_spectacular.generators import SchemaGenerator

from tests.routes import PARAMETER, api_routes

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "openapi.yaml"


def test_the_committed_schema_is_the_codes(tmp_path: Path) -> None:
    made = tmp_path / "openapi.yaml"
    call_command("spectacular", validate=True, fail_on_warn=True, file=str(made))
    lines = difflib.unified_diff(
        COMMITTED.read_text().splitlines(), made.read_text().splitlines(), "docs", "code", n=1, lineterm=""
    )
    changed = "\n".join(list(lines)[:60])
    assert not changed, f"Run `manage.py spectacular --validate --fail-on-warn --file docs/openapi.yaml`.\n{changed}"


def test_every_route_is_in_it_with_every_method_and_the_error_shape() -> None:
    paths = {
        re.sub(r"{\w+}", "{}", address): operations
        for address, operations in SchemaGenerator().get_schema(request=None, public=True)["paths"].items()
    }
    for route in api_routes():
        documented = paths[PARAMETER.sub("{}", route.pattern)]
        assert {m.lower() for m in route.methods} <= documented.keys(), route
        for method, operation in documented.items():
            assert "default" in operation["responses"], f"{method} {route}"
            assert operation["operationId"]


# Answers 201, but is not repeated: a token is used up by its first use, a playground key is one of many by design.
ONCE_ANYWAY = {"accept_invitation", "create_playground_key"}


def test_every_post_that_creates_takes_an_idempotency_key() -> None:
    creating = []
    for operations in SchemaGenerator().get_schema(request=None, public=True)["paths"].values():
        operation = operations.get("post", {})
        if "201" not in operation.get("responses", {}) or operation["operationId"] in ONCE_ANYWAY:
            continue
        creating.append(operation["operationId"])
        assert "Idempotency-Key" in {p["name"] for p in operation.get("parameters", [])}, operation["operationId"]
    assert {"create_key", "invite", "create_org"} <= set(creating)
