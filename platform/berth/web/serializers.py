"""Bodies are read strictly: every field is named by its serializer, and an unknown one is refused by its name (threat K3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request

from berth.web.errors import ApiError


class StrictSerializer(serializers.Serializer[Any]):
    """The base of every request body. Nested ones are strict too; the error names the path, as in `needs.context_length`."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            for name in data:
                if name not in self.fields or self.fields[name].read_only:
                    raise ApiError(
                        "unknown_field",
                        "This request has a field that is not known here. Remove it or check its spelling.",
                        field=".".join([*_path(self), str(name)[:80]]),
                    )
        return super().to_internal_value(data)


class NoBody(StrictSerializer):
    """For acts that take nothing: an absent body or `{}`."""


def read_body(serializer: type[StrictSerializer], request: Request, *, partial: bool = False) -> dict[str, Any]:
    """The validated body. `partial`: absent fields are left out instead of being required or defaulted."""
    form = serializer(data=request.data, partial=partial)
    form.is_valid(raise_exception=True)
    return dict(form.validated_data)


def read_query(serializer: type[StrictSerializer], request: Request) -> dict[str, Any]:
    """The validated query string: an unknown parameter is refused, so nothing from a URL reaches the ORM unnamed (threat A8)."""
    form = serializer(data=request.query_params.dict())
    form.is_valid(raise_exception=True)
    return dict(form.validated_data)


class PageQuery(StrictSerializer):
    """What every list takes. Filters of a list are added by deriving from it."""

    cursor = serializers.CharField(required=False, max_length=200, help_text="`next` of the page before")
    limit = serializers.IntegerField(
        required=False, min_value=1, max_value=200, help_text="Items on a page, 50 if absent"
    )


def _path(field: serializers.Field[Any, Any, Any, Any]) -> list[str]:
    names: list[str] = []
    at: Any = field
    while at is not None:
        if at.field_name:
            names.append(at.field_name)
        at = at.parent
    return list(reversed(names))
