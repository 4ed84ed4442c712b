"""The OpenAPI schema: every operation also documents the one error shape."""

from __future__ import annotations

from typing import Any, Literal

from drf_spectacular.openapi import AutoSchema as Base

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


class AutoSchema(Base):
    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        bodies.setdefault(
            "default", {"description": "Error", "content": {"application/json": {"schema": ERROR_SCHEMA}}}
        )
        return bodies
