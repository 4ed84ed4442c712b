"""Keyset paging: `?cursor=…&limit=…` answers `{"items": […], "next": "…"|null}`. Never offsets."""

from __future__ import annotations

import functools
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination as Base
from rest_framework.request import Request
from rest_framework.response import Response

from berth.web.errors import ApiError
from berth.web.serializers import PageQuery, read_query


class CursorPagination(Base):
    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"
    ordering = "-id"  # ids are UUIDv7, so newest first

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> Any:
        cursor = self.decode_cursor(request)
        if cursor is not None and cursor.position is not None:
            try:
                queryset.model._meta.pk.to_python(cursor.position)
            except ValidationError:
                raise _not_a_cursor() from None
        return super().paginate_queryset(queryset, request, view)

    def decode_cursor(self, request: Request) -> Any:
        try:
            return super().decode_cursor(request)
        except NotFound:
            raise _not_a_cursor() from None

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


def _not_a_cursor() -> ApiError:
    return ApiError("cursor_invalid", "This cursor is not one of this list. Start again without it.", field="cursor")


def page(
    request: Request,
    rows: QuerySet[Any],
    serializer: type[serializers.BaseSerializer[Any]],
    query: type[PageQuery] = PageQuery,
    **context: Any,
) -> Response:
    """One page of `rows`, newest first. Unknown query parameters are refused by `query`."""
    read_query(query, request)
    paginator = CursorPagination()
    items = paginator.paginate_queryset(rows, request)
    return paginator.get_paginated_response(serializer(items, many=True, context=context).data)


@functools.cache
def page_of(item: type[serializers.BaseSerializer[Any]]) -> type[serializers.Serializer[Any]]:
    """The answer's form, for the schema: `@extend_schema(responses=page_of(KeyOut), parameters=[PageQuery])`."""
    fields: dict[str, Any] = {
        "items": item(many=True),
        "next": serializers.CharField(allow_null=True, help_text="Cursor of the next page"),
        "__doc__": "One page of a list.",
    }
    return type(f"{item.__name__.removesuffix('Out')}Page", (serializers.Serializer,), fields)
