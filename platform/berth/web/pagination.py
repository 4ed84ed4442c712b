"""Keyset paging: `?cursor=…&limit=…` answers `{"items": […], "next": "…"|null}`. Never offsets."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from rest_framework.pagination import CursorPagination as Base
from rest_framework.response import Response


class CursorPagination(Base):
    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"
    ordering = "-id"  # ids are UUIDv7, so newest first

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"items": data, "next": self._next()})

    def _next(self) -> str | None:
        link = self.get_next_link()
        if link is None:
            return None
        return parse_qs(urlsplit(link).query)[self.cursor_query_param][0]

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "required": ["items", "next"],
            "properties": {
                "items": schema,
                "next": {"type": "string", "nullable": True, "description": "Cursor of the next page"},
            },
        }
