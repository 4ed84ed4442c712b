"""Where a change has arrived: `GET /orgs/{org}/gateways`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.urls import path
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from berth.orgs.permissions import Action
from berth.orgs.views import OrgView
from berth.publishing import services
from berth.web.errors import ApiError
from berth.web.serializers import StrictSerializer, read_query


class GatewaysQuery(StrictSerializer):
    version = serializers.IntegerField(required=False, min_value=0, max_value=2**53)
    change = serializers.IntegerField(required=False, min_value=1, max_value=2**53)


class GatewayOut(serializers.Serializer[Any]):
    gateway = serializers.CharField()
    version = serializers.IntegerField()
    applied = serializers.BooleanField()
    alive = serializers.BooleanField(help_text="Heard of within the last 10 seconds")
    at = serializers.DateTimeField()


class GatewaysOut(serializers.Serializer[Any]):
    version_wanted = serializers.IntegerField()
    items = GatewayOut(many=True)
    next = serializers.CharField(allow_null=True)


class ChangeOut(serializers.Serializer[Any]):
    applied = serializers.IntegerField()
    total = serializers.IntegerField(help_text="Gateways heard of within the last minute")
    missing = serializers.ListField(child=serializers.CharField())


class GatewaysView(OrgView):
    actions = {"GET": Action.ORG_READ}

    @extend_schema(
        operation_id="gateways_list",
        parameters=[
            OpenApiParameter("version", int, description="Snapshot version; absent: the current one"),
            OpenApiParameter("change", int, description="`change.id` of an earlier answer"),
        ],
        responses=PolymorphicProxySerializer(
            component_name="GatewaysOrChange", serializers=[GatewaysOut, ChangeOut], resource_type_field_name=None
        ),
    )
    def get(self, request: Request, org: str) -> Response:
        query = read_query(GatewaysQuery, request)
        if len(query) > 1:
            raise ApiError("invalid", "Ask by version or by change, not both.", field="change")
        if "change" in query:
            found = services.where_is(query["change"])
            missing = [each.gateway for each in found if not each.applied]
            return Response({"applied": len(found) - len(missing), "total": len(found), "missing": missing})
        wanted, found = services.acknowledgements(query.get("version"))
        return Response({"version_wanted": wanted, "items": [_shown(each) for each in found], "next": None})


def _shown(each: services.Acknowledgement) -> dict[str, Any]:
    at = datetime.fromtimestamp(each.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return each._asdict() | {"at": at}


urlpatterns = [path("orgs/<slug:org>/gateways", GatewaysView.as_view(), name="gateways")]
