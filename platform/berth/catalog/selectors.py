"""Reads of the catalogue."""

from __future__ import annotations

from django.db.models import Prefetch, QuerySet

from berth.catalog.models import Artefact, Model, ModelVersion
from berth.orgs.models import Organisation
from berth.web.errors import NotFound


def models_of(org: Organisation) -> QuerySet[Model]:
    """With versions, newest first, and their artefacts."""
    artefacts = Prefetch("artefacts", Artefact.objects.for_org(org).order_by("quantization"))
    versions = ModelVersion.objects.for_org(org).order_by("-number").prefetch_related(artefacts)
    return Model.objects.for_org(org).prefetch_related(Prefetch("versions", versions))


def get_model(org: Organisation, name: str) -> Model:
    """Raises NotFound."""
    model = models_of(org).filter(name=name).first()
    if model is None:
        raise NotFound("model")
    return model
