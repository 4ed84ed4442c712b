"""Routes of imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

from django.urls import path
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from berth.catalog import imports
from berth.catalog.import_models import ImportSource, ImportState
from berth.catalog.models import ImportFile, ModelImport
from berth.catalog.sources.upload import PART_BYTES
from berth.orgs.idempotency import idempotent
from berth.orgs.models import User
from berth.orgs.permissions import Action
from berth.orgs.views import OrgView
from berth.web.errors import ApiError
from berth.web.pagination import page, page_of
from berth.web.parsers import JsonParser
from berth.web.serializers import NoBody, PageQuery, StrictSerializer, read_body

PART_CHECKSUM = "X-Part-SHA256"


class ImportOut(serializers.ModelSerializer[ModelImport]):
    seconds_left = serializers.SerializerMethodField(help_text="At the present rate; null when nobody can tell")
    version = serializers.SerializerMethodField(help_text="Number of the model version it became")
    request = serializers.SerializerMethodField(
        help_text="What was asked for, without addresses of files, which may hold a token"
    )
    params = serializers.DictField(help_text="Numbers and names of `code`, for a message in another language")

    class Meta:
        model = ModelImport
        fields = ["id", "name", "source", "request", "state", "origin", "bytes_done", "bytes_total", "rate", "seconds_left", "code",
                  "message",
                  "params", "version", "created_at", "finished_at"]  # fmt: skip

    @extend_schema_field(serializers.DictField(child=serializers.CharField()))
    def get_request(self, run: ModelImport) -> dict[str, str]:
        return {name: value for name, value in run.request.items() if isinstance(value, str)}

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_seconds_left(self, run: ModelImport) -> int | None:
        if run.state != ImportState.FETCHING or not run.rate or run.bytes_total is None:
            return None
        return max(0, run.bytes_total - run.bytes_done) // run.rate

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_version(self, run: ModelImport) -> int | None:
        return run.version.number if run.version is not None else None


class ImportFileOut(serializers.ModelSerializer[ImportFile]):
    class Meta:
        model = ImportFile
        fields = ["name", "size", "sha256", "done"]


class MissingPartsOut(serializers.Serializer[Any]):
    name = serializers.CharField()
    parts = serializers.ListField(child=serializers.IntegerField())


class ImportDetailOut(ImportOut):
    files = ImportFileOut(many=True)
    missing = serializers.SerializerMethodField(help_text="Of an upload: parts that have not arrived, from 0")
    part_bytes = serializers.SerializerMethodField(help_text="Size of every part but a file's last")

    class Meta(ImportOut.Meta):
        fields = [*ImportOut.Meta.fields, "files", "missing", "part_bytes"]

    @extend_schema_field(MissingPartsOut(many=True))
    def get_missing(self, run: ModelImport) -> list[dict[str, Any]]:
        return [{"name": name, "parts": parts} for name, parts in sorted(imports.missing_parts(run).items())]

    @extend_schema_field(serializers.IntegerField())
    def get_part_bytes(self, run: ModelImport) -> int:
        return PART_BYTES


class UploadFileIn(StrictSerializer):
    name = serializers.CharField(max_length=128)
    size = serializers.IntegerField(min_value=1)
    sha256 = serializers.RegexField(r"^[0-9a-f]{64}\Z", required=False, help_text="Compared with what arrived")


class NewImportIn(StrictSerializer):
    source = serializers.ChoiceField(choices=ImportSource.choices)  # type: ignore[assignment]
    name = serializers.CharField(max_length=63, help_text="Of the model; a known name gets a new version")
    licence = serializers.CharField(max_length=80, required=False)
    description = serializers.CharField(max_length=400, required=False)
    base = serializers.CharField(
        max_length=80, required=False, help_text="Of an adapter: its base, as name or name@version"
    )
    credential = serializers.CharField(max_length=63, required=False, help_text="Name of a credential for the source")
    files = serializers.CharField(max_length=200, required=False, help_text="Which files, as in *Q4_K_M* or folder/*")
    repository = serializers.CharField(max_length=200, required=False, help_text="hub: organisation/name")
    revision = serializers.CharField(
        max_length=128, required=False, help_text="hub: branch, tag or commit; default main"
    )
    endpoint = serializers.CharField(max_length=400, required=False, help_text="hub: address of a mirror")
    uri = serializers.CharField(max_length=1000, required=False, help_text="s3: s3://bucket/folder/")
    urls = serializers.ListField(
        child=serializers.CharField(max_length=2000), max_length=256, required=False, help_text="url: one for each file"
    )
    path = serializers.CharField(
        max_length=4096, required=False, help_text="path: a file or folder of the server, for operators"
    )
    upload = UploadFileIn(many=True, required=False, help_text="upload: the files that will come")


class Bytes(BaseParser):
    """A part of an upload as it is; one byte more than allowed is read, so that a longer one is noticed."""

    media_type = "application/octet-stream"

    def parse(  # type: ignore[override]  # DRF hands on whatever a parser returns
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> bytes:
        return bytes(stream.read(PART_BYTES + 1))


class ImportsView(OrgView):
    actions = {"GET": Action.MODELS_READ, "POST": Action.MODELS_WRITE}

    @extend_schema(operation_id="list_imports", responses=page_of(ImportOut), parameters=[PageQuery])
    def get(self, request: Request, org: str) -> Response:
        return page(request, ModelImport.objects.for_org(self.org).select_related("version"), ImportOut)

    @extend_schema(operation_id="start_import", request=NewImportIn, responses={201: ImportDetailOut})
    @idempotent
    def post(self, request: Request, org: str) -> Response:
        """Starts an import. Of an upload, send the parts next; everything else goes on by itself."""
        run = imports.start_import(self.org, cast(User, request.user), read_body(NewImportIn, request))
        return Response(ImportDetailOut(run).data, status=201)


class ImportView(OrgView):
    actions = {"GET": Action.MODELS_READ}

    @extend_schema(operation_id="get_import", responses=ImportDetailOut)
    def get(self, request: Request, org: str, import_id: UUID) -> Response:
        return Response(ImportDetailOut(imports.find_import(self.org, import_id)).data)


class CancelImportView(OrgView):
    actions = {"POST": Action.MODELS_WRITE}

    @extend_schema(operation_id="cancel_import", request=NoBody, responses=ImportOut)
    def post(self, request: Request, org: str, import_id: UUID) -> Response:
        read_body(NoBody, request)
        return Response(ImportOut(imports.cancel_import(self.org, import_id)).data)


class PartView(OrgView):
    actions = {"PUT": Action.MODELS_WRITE}
    parser_classes = (Bytes, JsonParser)  # JSON only to be told that it is none

    @extend_schema(
        operation_id="send_import_part",
        request={"application/octet-stream": {"type": "string", "format": "binary"}},
        responses=ImportOut,
        parameters=[
            OpenApiParameter(
                PART_CHECKSUM, str, OpenApiParameter.HEADER, required=True, description="SHA-256, hexadecimal"
            )
        ],
    )
    def put(self, request: Request, org: str, import_id: UUID, name: str, number: int) -> Response:
        """A part of an uploaded file, numbered from 0. The same part again is harmless."""
        if not isinstance(request.data, bytes):
            read_body(NoBody, request)
            imports.find_file(imports.find_import(self.org, import_id), name)
            raise ApiError(
                "part_size", "Send the part's bytes with Content-Type: application/octet-stream.", status=422
            )
        told = request.headers.get(PART_CHECKSUM, "")
        run = imports.receive_part(self.org, import_id, name, number, request.data, told)
        return Response(ImportOut(run).data)


urlpatterns = [
    path("orgs/<slug:org>/imports", ImportsView.as_view()),
    path("orgs/<slug:org>/imports/<uuid:import_id>", ImportView.as_view()),
    path("orgs/<slug:org>/imports/<uuid:import_id>/cancel", CancelImportView.as_view()),
    path("orgs/<slug:org>/imports/<uuid:import_id>/files/<str:name>/parts/<int:number>", PartView.as_view()),
]
