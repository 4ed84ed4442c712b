"""Routes of an organisation's storage: what it holds, letting go of it, and how much it may have."""

from __future__ import annotations

from typing import Any

from django.urls import path
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from berth.catalog import references
from berth.catalog.deletion import delete_version
from berth.catalog.quotas import set_quota
from berth.orgs.permissions import Action
from berth.orgs.views import OrgView
from berth.web.auth import Operator
from berth.web.serializers import StrictSerializer, read_body

GONE = OpenApiResponse(description="Done.")


class StorageOut(serializers.Serializer[Any]):
    used = serializers.IntegerField(help_text="Bytes of all model versions; what several share counts once")
    coming = serializers.IntegerField(help_text="Bytes of imports on their way")
    quota = serializers.IntegerField(allow_null=True, help_text="Bytes; null: no limit")


class QuotaIn(StrictSerializer):
    bytes = serializers.IntegerField(allow_null=True, min_value=0, help_text="null: no limit")


class VersionView(OrgView):
    actions = {"DELETE": Action.MODELS_WRITE}

    @extend_schema(operation_id="delete_model_version", request=None, responses={204: GONE})
    def delete(self, request: Request, org: str, name: str, number: int) -> Response:
        """Lets go of a version's files. Not while a deployment runs the model."""
        delete_version(self.member, name, number)
        return Response(status=204)


class StorageView(OrgView):
    actions = {"GET": Action.MODELS_READ}

    @extend_schema(operation_id="get_storage", responses=StorageOut)
    def get(self, request: Request, org: str) -> Response:
        return Response(StorageOut(references.storage_of(self.org)).data)


class QuotaView(APIView):
    permission_classes = (Operator,)

    @extend_schema(operation_id="set_storage_quota", request=QuotaIn, responses=StorageOut)
    def put(self, request: Request, org: str) -> Response:
        """How much storage an organisation may use for models."""
        found = set_quota(org, read_body(QuotaIn, request)["bytes"])
        return Response(StorageOut(references.storage_of(found)).data)


urlpatterns = [
    path("operator/orgs/<slug:org>/storage-quota", QuotaView.as_view()),
    path("orgs/<slug:org>/storage", StorageView.as_view()),
    path("orgs/<slug:org>/models/<str:name>/versions/<int:number>", VersionView.as_view()),
]
