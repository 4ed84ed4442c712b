"""What the schema generator cannot see: sign-in (allauth's views) and the event stream."""

from __future__ import annotations

from typing import Any

from berth.web.schema import ERROR_SCHEMA


def add_hand_written(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    for address, operations in _paths().items():
        result["paths"][address] = operations
    result.setdefault("components", {}).setdefault("schemas", {})["LiveEvent"] = LIVE_EVENT
    result["paths"] = dict(sorted(result["paths"].items()))
    return result


def _paths() -> dict[str, Any]:
    password = {"type": "string", "format": "password"}
    return {
        "/api/v1/auth/browser/v1/auth/login": {
            "post": _operation(
                "sign_in",
                "Signs in. The session's cookie is new; the CSRF cookie changes too.",
                sent={"email": {"type": "string", "format": "email"}, "password": password},
                answers={"200": _json("Signed in", _SESSION)},
            )
        },
        "/api/v1/auth/browser/v1/auth/reauthenticate": {
            "post": _operation(
                "confirm_sign_in",
                "Gives one's password again. For a quarter of an hour, what asks for a recent sign-in is open.",
                sent={"password": password},
                answers={"200": _json("Confirmed", _SESSION)},
                secured=True,
            )
        },
        "/api/v1/auth/browser/v1/auth/session": {
            "get": _operation("get_session", "Who is signed in; 401 if nobody.", answers={"200": _json("", _SESSION)}),
            "delete": _operation("sign_out", "Ends the session.", answers={"204": {"description": "Signed out"}}),
        },
        "/api/v1/auth/browser/v1/account/password/change": {
            "post": _operation(
                "change_password",
                "Changes one's password and ends all other sessions.",
                sent={"current_password": password, "new_password": password},
                answers={"200": _json("Changed", _SESSION)},
                secured=True,
            )
        },
        "/api/v1/orgs/{org}/deployments/{name}/live": {
            "get": {
                **_operation(
                    "live_deployment",
                    "One deployment as server-sent events. `event:` is `status` (at once, and whenever it changes: what "
                    "`get_deployment_status` answers), `deployments`, `heartbeat` or `reset`.",
                    answers={
                        "200": {
                            "description": "",
                            "content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/LiveEvent"}}},
                        }
                    },
                    secured=True,
                    tag="orgs",
                ),
                "parameters": [
                    {"in": "path", "name": "org", "required": True, "schema": {"type": "string"}},
                    {"in": "path", "name": "name", "required": True, "schema": {"type": "string"}},
                    {"in": "header", "name": "Last-Event-ID", "schema": {"type": "string"}},
                ],
            }
        },
        "/api/v1/orgs/{org}/events": {
            "get": {
                **_operation(
                    "events",
                    "Live events as server-sent events, for as long as session and membership last. `event:` is the topic, "
                    "`heartbeat` (at once, then every 15 s) or `reset` (fetch everything again).",
                    answers={
                        "200": {
                            "description": "",
                            "content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/LiveEvent"}}},
                        }
                    },
                    secured=True,
                    tag="orgs",
                ),
                "parameters": [
                    {"in": "path", "name": "org", "required": True, "schema": {"type": "string"}},
                    {"in": "query", "name": "topics", "schema": {"type": "string"}, "description": "Comma-separated"},
                    {"in": "header", "name": "Last-Event-ID", "schema": {"type": "string"}},
                ],
            }
        },
    }


_SESSION: dict[str, Any] = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "integer"}, "data": {"type": "object"}, "meta": {"type": "object"}},
}

LIVE_EVENT: dict[str, Any] = {
    "type": "object",
    "description": "The data of an event.",
    "required": ["id", "topic", "resource", "version", "at", "data"],
    "properties": {
        "id": {"type": "string"},
        "topic": {"type": "string"},
        "resource": {"type": "string", "description": "Name or id, as the thing's address ends"},
        "version": {"type": "integer", "description": "Rises; drop what is not newer than what is shown"},
        "at": {"type": "string", "format": "date-time"},
        "data": {"type": "object", "additionalProperties": True},
    },
}


def _operation(
    name: str,
    description: str,
    *,
    answers: dict[str, Any],
    sent: dict[str, Any] | None = None,
    secured: bool = False,
    tag: str = "auth",
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name,
        "description": description,
        "tags": [tag],
        "responses": {**answers, "default": _json("Error", ERROR_SCHEMA)},
    }
    if secured:
        operation["security"] = [{"session": []}]
    if sent is not None:
        form = {"type": "object", "required": list(sent), "properties": sent}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": form}}}
    return operation


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
