"""Routes of models."""

from __future__ import annotations

from typing import Any, cast

from django.urls import path
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from berth.catalog import credentials_api, import_api, library_api, selectors, services, storage_api
from berth.catalog.conversion.shown import QualityOut
from berth.catalog.models import Artefact, Model, ModelVersion
from berth.catalog.uses import uses_of
from berth.orgs.idempotency import idempotent
from berth.orgs.models import User
from berth.orgs.permissions import Action
from berth.orgs.views import OrgView
from berth.web.errors import ApiError
from berth.web.pagination import page, page_of
from berth.web.serializers import PageQuery, StrictSerializer, read_body


class AdapterOut(serializers.Serializer[Any]):
    rank = serializers.IntegerField()
    alpha = serializers.FloatField()
    target_modules = serializers.ListField(child=serializers.CharField())
    base_name = serializers.CharField(help_text="What the adapter itself calls its base; may be empty")
    engines = serializers.ListField(child=serializers.CharField(), help_text="Those that load it beside its base")


class ArtefactOut(serializers.ModelSerializer[Artefact]):
    adapter = serializers.SerializerMethodField(help_text="Of a LoRA adapter; null for a whole model")
    quality = QualityOut(allow_null=True, help_text="Of what a conversion made; null: it came in as it is")

    class Meta:
        model = Artefact
        fields = ["id", "format", "quantization", "size", "engines", "adapter", "quality"]

    @extend_schema_field(AdapterOut(allow_null=True))
    def get_adapter(self, artefact: Artefact) -> dict[str, Any] | None:
        told = artefact.adapter
        return {name: told.get(name) for name in map(str, AdapterOut().fields)} if told else None


class ModelFactsOut(serializers.Serializer[Any]):
    """What the file's header says. Everything that was read is here; these are the fields that every model has."""

    architecture = serializers.CharField()
    name = serializers.CharField(allow_null=True)
    parameters = serializers.IntegerField()
    active_parameters = serializers.IntegerField()
    layers = serializers.IntegerField()
    context_length = serializers.IntegerField()
    vocabulary = serializers.IntegerField()
    has_chat_template = serializers.BooleanField()


_FACTS = tuple(str(name) for name in ModelFactsOut().fields)


class NoteOut(serializers.Serializer[Any]):
    """Noticed when the files were taken in, and no reason to refuse them."""

    code = serializers.CharField()
    message = serializers.CharField()
    params = serializers.DictField()


class ModelVersionOut(serializers.ModelSerializer[ModelVersion]):
    facts = serializers.SerializerMethodField()
    base = serializers.SerializerMethodField(help_text="Of an adapter: its base, as name@version")
    notes = NoteOut(many=True)
    artefacts = ArtefactOut(many=True)

    class Meta:
        model = ModelVersion
        fields = ["id", "number", "source", "origin", "licence", "base", "notes", "created_at", "facts", "artefacts"]

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_base(self, version: ModelVersion) -> str | None:
        return None if version.base is None else f"{version.base.model.name}@{version.base.number}"

    @extend_schema_field(ModelFactsOut)
    def get_facts(self, version: ModelVersion) -> dict[str, Any]:
        return {name: version.facts.get(name) for name in _FACTS}


class ModelOut(serializers.ModelSerializer[Model]):
    versions = ModelVersionOut(many=True)
    deployments = serializers.SerializerMethodField()

    class Meta:
        model = Model
        fields = ["id", "name", "description", "created_at", "versions", "deployments"]

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_deployments(self, model: Model) -> list[str]:
        return uses_of(model.org_id, [model.pk]).get(model.pk, [])


class NewModelIn(StrictSerializer):
    source = serializers.ChoiceField(  # type: ignore[assignment]  # the body's field is called so; DRF's own attribute is not used
        choices=["sample", "path"],
        help_text="sample: the bundled SmolLM2. path: a GGUF file on the machine, for the operator",
    )
    path = serializers.CharField(max_length=4096, required=False, help_text="Absolute path of the file")
    name = serializers.CharField(max_length=63, required=False)


class ModelsView(OrgView):
    actions = {"GET": Action.MODELS_READ, "POST": Action.MODELS_WRITE}

    @extend_schema(operation_id="list_models", responses=page_of(ModelOut), parameters=[PageQuery])
    def get(self, request: Request, org: str) -> Response:
        return page(request, selectors.models_of(self.org), ModelOut)

    @extend_schema(operation_id="add_model", request=NewModelIn, responses={201: ModelOut})
    @idempotent
    def post(self, request: Request, org: str) -> Response:
        """Adds a model, or a version to the model of that name. The same file again is the same version."""
        version = _add(self, read_body(NewModelIn, request), cast(User, request.user))
        return Response(ModelOut(selectors.get_model(self.org, version.model.name)).data, status=201)


class ModelView(OrgView):
    actions = {"GET": Action.MODELS_READ}

    @extend_schema(operation_id="get_model", responses=ModelOut)
    def get(self, request: Request, org: str, name: str) -> Response:
        return Response(ModelOut(selectors.get_model(self.org, name)).data)


def _add(view: OrgView, body: dict[str, Any], user: User) -> ModelVersion:
    if body["source"] == "sample":
        for field in ("path", "name"):
            if field in body:
                raise ApiError("invalid", f"The sample model comes without a {field}. Leave it out.", field=field)
        return services.import_sample(view.org, user)
    for field in ("path", "name"):
        if field not in body:
            raise ApiError("invalid", f"A model from a path needs its {field}.", field=field)
    return services.import_path(view.org, user, body["path"], body["name"])


urlpatterns = [
    path("orgs/<slug:org>/models", ModelsView.as_view()),
    path("orgs/<slug:org>/models/<str:name>", ModelView.as_view()),
    *library_api.urlpatterns,
    *import_api.urlpatterns,
    *credentials_api.urlpatterns,
    *storage_api.urlpatterns,
]
