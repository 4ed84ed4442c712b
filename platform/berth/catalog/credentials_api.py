"""Routes of the keys to places where models are."""

from __future__ import annotations

from typing import Any, cast

from django.urls import path
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from berth.catalog import credentials
from berth.catalog.import_models import CredentialKind
from berth.catalog.models import SourceCredential
from berth.orgs.idempotency import idempotent
from berth.orgs.models import User
from berth.orgs.permissions import Action
from berth.orgs.views import OrgView
from berth.web.pagination import page, page_of
from berth.web.serializers import PageQuery, StrictSerializer, read_body

GONE = OpenApiResponse(description="Done.")


class CredentialOut(serializers.ModelSerializer[SourceCredential]):
    class Meta:
        model = SourceCredential
        fields = ["name", "kind", "host", "hint", "created_at"]


class NewCredentialIn(StrictSerializer):
    name = serializers.CharField(max_length=63)
    kind = serializers.ChoiceField(choices=CredentialKind.choices)
    secret = serializers.CharField(
        max_length=512, help_text="s3: the secret access key; hub, bearer: the token. Never shown again"
    )
    key_id = serializers.CharField(max_length=512, required=False, help_text="s3: the access key id")
    endpoint = serializers.CharField(
        max_length=400, required=False, help_text="s3, hub: address of the service, if not the usual one"
    )
    region = serializers.CharField(max_length=32, required=False, help_text="s3")
    host = serializers.CharField(max_length=253, required=False, help_text="bearer: the host that gets the token")


class CredentialsView(OrgView):
    actions = {"GET": Action.MODELS_WRITE, "POST": Action.MODELS_WRITE}

    @extend_schema(operation_id="list_source_credentials", responses=page_of(CredentialOut), parameters=[PageQuery])
    def get(self, request: Request, org: str) -> Response:
        return page(request, SourceCredential.objects.for_org(self.org), CredentialOut)

    @extend_schema(operation_id="create_source_credential", request=NewCredentialIn, responses={201: CredentialOut})
    @idempotent
    def post(self, request: Request, org: str) -> Response:
        """Keeps a key to a place where models are. Its secret is sealed, never shown, and sent to that host only."""
        made = credentials.create_credential(
            self.org, cast(User, request.user), **_named(read_body(NewCredentialIn, request))
        )
        return Response(CredentialOut(made).data, status=201)


def _named(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in map(str, NewCredentialIn().fields) if name in body}


class CredentialView(OrgView):
    actions = {"DELETE": Action.MODELS_WRITE}

    @extend_schema(operation_id="delete_source_credential", request=None, responses={204: GONE})
    def delete(self, request: Request, org: str, name: str) -> Response:
        credentials.delete_credential(self.org, name)
        return Response(status=204)


urlpatterns = [
    path("orgs/<slug:org>/source-credentials", CredentialsView.as_view()),
    path("orgs/<slug:org>/source-credentials/<str:name>", CredentialView.as_view()),
]
