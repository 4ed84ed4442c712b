"""The OpenAPI schema: every operation also documents the one error shape, and creating ones the idempotency key."""

from __future__ import annotations

from typing import Any, Literal

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema as Base
from drf_spectacular.utils import OpenApiParameter

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "params", "field", "request_id"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "params": {"type": "object", "additionalProperties": True},
                "field": {"type": "string", "nullable": True},
                "request_id": {"type": "string"},
            },
        }
    },
}


IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="8 to 128 visible ASCII characters, best a random UUID. The same key and body within 24 h answer the same.",
)


class AutoSchema(Base):
    def get_override_parameters(self) -> list[Any]:
        handler = getattr(self.view, self.method.lower(), None)
        return [IDEMPOTENCY_KEY] if getattr(handler, "idempotent", False) else []

    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        bodies.setdefault(
            "default", {"description": "Error", "content": {"application/json": {"schema": ERROR_SCHEMA}}}
        )
        return bodies


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "berth.web.auth.Session"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": "berth_session",
            "description": "Set by signing in (behind HTTPS: __Host-berth_session). Changing calls also send X-CSRFToken.",
        }
