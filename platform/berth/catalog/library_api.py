"""The route of the library of known models."""

from __future__ import annotations

from typing import Any

from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from berth.catalog import library
from berth.web.auth import SignedIn


class LibraryModelOut(serializers.Serializer[Any]):
    key = serializers.CharField()
    title = serializers.CharField()
    publisher = serializers.CharField()
    repository = serializers.CharField(help_text="On the hub; empty: comes with Berth")
    files = serializers.CharField(help_text="Pattern for an import; empty: all that belongs to it")
    name = serializers.CharField(help_text="Suggested name in the organisation")
    licence = serializers.CharField()
    licence_url = serializers.CharField()
    gated = serializers.BooleanField(help_text="The hub wants its terms to be agreed to first")
    parameters = serializers.IntegerField()
    active_parameters = serializers.IntegerField()
    context_length = serializers.IntegerField()
    size = serializers.IntegerField(help_text="Bytes to fetch, about")
    tasks = serializers.ListField(child=serializers.CharField())
    good_for = serializers.DictField(child=serializers.CharField(), help_text="By language: en, zh")
    needs = serializers.DictField(help_text="Where to begin with a plan")
    offline = serializers.BooleanField()
    source = serializers.CharField(help_text="Where the facts come from")  # type: ignore[assignment]


class LibraryView(APIView):
    permission_classes = (SignedIn,)

    @extend_schema(operation_id="list_library", responses=LibraryModelOut(many=True))
    def get(self, request: Request) -> Response:
        """Popular open models with what is known of them; each is an import away."""
        return Response(LibraryModelOut(library.models(), many=True).data)


urlpatterns = [path("library", LibraryView.as_view())]
