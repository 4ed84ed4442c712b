"""Routes of conversions."""

from __future__ import annotations

from typing import Any, cast

from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from berth.catalog.conversion import sample, services, targets
from berth.catalog.conversion.models import Conversion
from berth.catalog.conversion.shown import QualityOut
from berth.orgs.idempotency import idempotent
from berth.orgs.models import User
from berth.orgs.permissions import Action
from berth.orgs.views import OrgView
from berth.web.pagination import page, page_of
from berth.web.serializers import PageQuery, StrictSerializer, read_body


class FallbackOut(serializers.Serializer[Any]):
    wanted = serializers.CharField()
    given = serializers.CharField()
    row = serializers.IntegerField(help_text="elements of a row, which do not fit the wanted type")
    tensors = serializers.IntegerField()
    examples = serializers.ListField(child=serializers.CharField())


class ConversionOut(serializers.ModelSerializer[Conversion]):
    model = serializers.CharField(source="source.version.model.name")
    version = serializers.IntegerField(source="source.version.number")
    source = serializers.CharField(source="source.quantization")  # type: ignore[assignment]  # DRF's own attribute is not used
    seconds_left = serializers.SerializerMethodField()
    fallbacks = FallbackOut(many=True)
    quality = QualityOut(allow_null=True)

    class Meta:
        model = Conversion
        fields = [
            "id", "model", "version", "source", "format", "quantization", "state", "step", "done", "total", "seconds_left",
            "fallbacks", "requantized", "quality", "code", "message", "artefact", "created_at", "finished_at",
        ]  # fmt: skip

    def get_seconds_left(self, conversion: Conversion) -> float | None:
        """Of the running step."""
        if not conversion.rate or conversion.final:
            return None
        return round(max(0, conversion.total - conversion.done) / conversion.rate, 1)


class NewConversionIn(StrictSerializer):
    format = serializers.ChoiceField(choices=list(targets.MADE), default="gguf")
    quantization = serializers.ChoiceField(
        choices=targets.QUANTIZATIONS, help_text="what can be made depends on the format"
    )
    sample_text = serializers.CharField(
        min_length=sample.LEAST,
        max_length=sample.MOST,
        required=False,
        trim_whitespace=False,
        write_only=True,
        help_text="a text of your own to measure the quality with, beside the neutral one; sealed until the conversion ends, then deleted",
    )


class ConversionsView(OrgView):
    actions = {"GET": Action.MODELS_READ}

    @extend_schema(operation_id="list_conversions", responses=page_of(ConversionOut), parameters=[PageQuery])
    def get(self, request: Request, org: str) -> Response:
        return page(request, services.conversions_of(self.org), ConversionOut)


class VersionConversionsView(OrgView):
    actions = {"POST": Action.MODELS_WRITE}

    @extend_schema(operation_id="start_conversion", request=NewConversionIn, responses={202: ConversionOut})
    @idempotent
    def post(self, request: Request, org: str, name: str, number: int) -> Response:
        """Makes an artefact of another format or quantization, measures it against its source, and adds it to the version."""
        body = read_body(NewConversionIn, request)
        made = services.start_conversion(self.org, cast(User, request.user), name, number, **body)
        return Response(ConversionOut(services.get_conversion(self.org, str(made.pk))).data, status=202)


class ConversionView(OrgView):
    actions = {"GET": Action.MODELS_READ, "DELETE": Action.MODELS_WRITE}

    @extend_schema(operation_id="get_conversion", responses=ConversionOut)
    def get(self, request: Request, org: str, conversion_id: str) -> Response:
        return Response(ConversionOut(services.get_conversion(self.org, conversion_id)).data)

    @extend_schema(operation_id="cancel_conversion", responses={202: ConversionOut})
    def delete(self, request: Request, org: str, conversion_id: str) -> Response:
        """Stops it. What has ended stays as it ended."""
        return Response(ConversionOut(services.cancel_conversion(self.org, conversion_id)).data, status=202)


urlpatterns = [
    path("orgs/<slug:org>/conversions", ConversionsView.as_view()),
    path("orgs/<slug:org>/conversions/<uuid:conversion_id>", ConversionView.as_view()),
    path("orgs/<slug:org>/models/<str:name>/versions/<int:number>/conversions", VersionConversionsView.as_view()),
]
