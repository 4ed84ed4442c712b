"""What people do with models: add the sample, add one from the operator's disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.db import transaction

from berth.catalog import sample
from berth.catalog.errors import FileRefused, Refused
from berth.catalog.facts import ArtefactFacts, ModelFacts, to_json
from berth.catalog.intake.gguf import read_gguf
from berth.catalog.intake.template import check_template
from berth.catalog.models import Artefact, ArtefactFile, Model, ModelVersion
from berth.catalog.store import digest_of, store
from berth.orgs.models import Organisation, User
from berth.web.errors import ApiError, Forbidden
from berth.web.events import publish_event

NAME_FORM: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_FILE_FORM: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ENGINES: Final = {"gguf": ["llamacpp"]}


@dataclass(frozen=True)
class _Intake:
    """A file that was found good and is in the store."""

    name: str
    sha256: str
    size: int
    model: ModelFacts
    artefact: ArtefactFacts


def import_sample(org: Organisation, actor: User | None) -> ModelVersion:
    """Adds the sample model to the organisation, or finds it there. `actor` None: Berth itself, at the first start."""
    path = sample.sample_path()
    return _import(
        org, actor, path, name=sample.NAME, source="sample", licence=sample.LICENCE, description=sample.DESCRIPTION
    )


def import_path(
    org: Organisation, actor: User, path: str, name: str, *, licence: str = "", description: str = ""
) -> ModelVersion:
    """Adds a GGUF file from the machine's disk as a new model, or as a new version of the model of that name.

    Only for the platform operator: a path reaches whatever Berth itself may read. The same file again is the same version.
    Raises Forbidden, FileRefused, StoreFull, ApiError for a bad name.
    """
    if not actor.is_operator:
        raise Forbidden("operator")
    file = Path(path)
    if not file.is_absolute() or ".." in file.parts or "\0" in path:
        raise ApiError("invalid_path", "Give the file's absolute path, without `..` in it.", field="path", status=422)
    return _import(org, actor, file, name=name, source="path", licence=licence, description=description)


def _import(
    org: Organisation, actor: User | None, path: Path, *, name: str, source: str, licence: str, description: str
) -> ModelVersion:
    if not NAME_FORM.fullmatch(name):
        raise ApiError(
            "invalid_name",
            "A model's name has 1 to 63 lower-case letters, digits, dots, dashes and underscores, and begins with a letter or digit.",
            field="name",
            status=422,
        )
    if not _FILE_FORM.fullmatch(path.name) or not path.name.lower().endswith(".gguf"):
        raise ApiError(
            "invalid_file_name",
            "The file must be named *.gguf with letters, digits, dots, dashes and underscores only. Rename it and try again.",
            field="path",
            status=422,
        )
    try:
        sha256, size = digest_of(path)
        known = _known(org, name, sha256)
        if known is not None and store().holds(sha256, size):
            return known
        intake = _take_in(path)
    except Refused as refused:
        raise FileRefused(path.name, refused) from None
    return _known(org, name, intake.sha256) or _record(org, actor, intake, name, source, licence, description)


def _known(org: Organisation, name: str, sha256: str) -> ModelVersion | None:
    return (
        ModelVersion.objects.for_org(org)
        .filter(model__name=name, artefacts__files__sha256=sha256)
        .select_related("model")
        .order_by("number")
        .first()
    )


def _take_in(path: Path) -> _Intake:
    """Copies, checks the copy, and keeps it. Outside any transaction: a large file takes its time."""
    with store().stage(path) as staged:
        model, artefact, template = read_gguf(staged.path)
        if template is not None:
            artefact = check_template(template, artefact)
        store().put(staged)
        return _Intake(path.name, staged.sha256, staged.size, model, artefact)


@transaction.atomic
def _record(
    org: Organisation, actor: User | None, intake: _Intake, name: str, source: str, licence: str, description: str
) -> ModelVersion:
    Model.objects.for_org(org).get_or_create(org=org, name=name, defaults={"description": description[:400]})
    model = Model.objects.for_org(org).select_for_update().get(name=name)  # one version number at a time
    known = _known(org, name, intake.sha256)
    if known is not None:
        return known
    latest = ModelVersion.objects.for_org(org).filter(model=model).order_by("-number").first()
    version = ModelVersion.objects.for_org(org).create(
        org=org,
        model=model,
        number=latest.number + 1 if latest else 1,
        source=source,
        licence=licence[:80],
        facts=to_json(intake.model),
        created_by=actor,
    )
    artefact = Artefact.objects.for_org(org).create(
        org=org,
        version=version,
        format="gguf",
        quantization=intake.artefact.quantization[:16],
        engines=_ENGINES["gguf"],
        size=intake.size,
        facts=to_json(intake.artefact),
    )
    ArtefactFile.objects.for_org(org).create(
        org=org, artefact=artefact, name=intake.name, role="weights", size=intake.size, sha256=intake.sha256
    )
    publish_event(org.pk, "models", name, version.number, {"kind": "version_added", "version": version.number})
    return version
