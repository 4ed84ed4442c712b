"""Deleting a model version: its files are let go at once; the row goes too unless a revision of old still names it."""

from __future__ import annotations

from django.db import transaction
from django.db.models import ProtectedError
from django.utils import timezone

from berth.catalog.models import Artefact, ArtefactFile, Model, ModelVersion
from berth.catalog.uses import uses_of
from berth.orgs.models import Member
from berth.orgs.permissions import Action, allows
from berth.web.errors import ApiError, Conflict, NotFound
from berth.web.events import publish_event


@transaction.atomic
def delete_version(member: Member, name: str, number: int) -> None:
    """Raises NotFound, ApiError for another's version, Conflict while a deployment or an adapter uses the model."""
    org = member.org
    version = (
        ModelVersion.objects.for_org(org)
        .select_for_update(of=("self",))
        .select_related("model")
        .filter(model__name=name, number=number, deleted_at=None)
        .first()
    )
    if version is None:
        raise NotFound("model version")
    if version.created_by_id != member.user_id and not allows(member.role, Action.MODELS_DELETE_ALL):
        raise ApiError(
            "version_not_yours",
            "Somebody else added this version. Its author, an admin or an owner can delete it.",
            status=403,
        )
    users = uses_of(org.pk, [version.model_id]).get(version.model_id, [])
    if users:
        raise Conflict(
            "model_in_use",
            f"{name} is deployed as {', '.join(users[:5])}. Delete or update what runs it first.",
            params={"deployments": users[:20]},
        )
    if ModelVersion.objects.for_org(org).filter(base=version, deleted_at=None).exists():
        raise Conflict("model_in_use", "Adapters are made for this version. Delete them first.")
    model = version.model
    ArtefactFile.objects.for_org(org).filter(artefact__version=version).delete()
    try:
        with transaction.atomic():
            # What was made from another artefact goes before that one.
            for artefact in Artefact.objects.for_org(org).filter(version=version).order_by("-id"):
                artefact.delete()
            version.delete()
            if not ModelVersion.objects.for_org(org).filter(model=model).exists():
                Model.objects.for_org(org).filter(pk=model.pk).delete()
    except ProtectedError:  # kept as history, without its files
        ModelVersion.objects.for_org(org).filter(pk=version.pk).update(deleted_at=timezone.now())
    publish_event(org.pk, "models", name, None, {"kind": "version_deleted", "version": number})
