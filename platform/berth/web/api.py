"""What belongs to no organisation: the CSRF cookie and whether the control plane is up."""

from __future__ import annotations

from django.middleware.csrf import get_token
from django.urls import path
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from berth.web.auth import Open


class HealthOut(serializers.Serializer[dict[str, str]]):
    status = serializers.CharField(help_text='"ok"')


class CsrfView(APIView):
    authentication_classes = ()
    permission_classes = (Open,)

    @extend_schema(
        operation_id="csrf",
        responses={204: OpenApiResponse(description="The cookie is set. Send its value as X-CSRFToken.")},
        auth=[],
    )
    def get(self, request: Request) -> Response:
        """Sets the CSRF cookie, whose value every changing call sends back in the header X-CSRFToken."""
        get_token(request._request)
        return Response(status=204)


class HealthView(APIView):
    authentication_classes = ()
    permission_classes = (Open,)

    @extend_schema(operation_id="health", responses=HealthOut, auth=[])
    def get(self, request: Request) -> Response:
        """Whether this process answers. Touches no database, so a restart of one is no reason to restart this."""
        return Response({"status": "ok"})


urlpatterns = [
    path("csrf", CsrfView.as_view()),
    path("health", HealthView.as_view()),
]
