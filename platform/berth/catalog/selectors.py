"""Reads of the catalogue."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, Prefetch, QuerySet

from berth.catalog.models import Artefact, Model, ModelVersion
from berth.orgs.models import Organisation
from berth.web.errors import NotFound


def models_of(org: Organisation) -> QuerySet[Model]:
    """With versions, newest first, and their artefacts. A model whose versions are all deleted is not there any more."""
    artefacts = Prefetch("artefacts", Artefact.objects.for_org(org).order_by("quantization"))
    versions = ModelVersion.objects.for_org(org).filter(deleted_at=None).order_by("-number")
    versions = versions.select_related("base__model").prefetch_related(artefacts)
    there = ModelVersion.objects.for_org(org).filter(model=OuterRef("pk"), deleted_at=None)
    return Model.objects.for_org(org).filter(Exists(there)).prefetch_related(Prefetch("versions", versions))


def get_model(org: Organisation, name: str) -> Model:
    """Raises NotFound."""
    model = models_of(org).filter(name=name).first()
    if model is None:
        raise NotFound("model")
    return model
