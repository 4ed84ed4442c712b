"""What people do with models: add the sample, add one from the operator's disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from berth.catalog import sample
from berth.catalog.errors import FileRefused, Refused
from berth.catalog.intake.verify import verify
from berth.catalog.models import ModelVersion
from berth.catalog.recording import Provenance, keep_version, known_version, set_digest
from berth.catalog.store import digest_of, store
from berth.orgs.models import Organisation, User
from berth.web.errors import ApiError, Forbidden

NAME_FORM: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_FILE_FORM: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


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


def check_model_name(name: str) -> None:
    """Raises ApiError."""
    if not NAME_FORM.fullmatch(name):
        raise ApiError(
            "invalid_name",
            "A model's name has 1 to 63 lower-case letters, digits, dots, dashes and underscores, and begins with a letter or digit.",
            field="name",
            status=422,
        )


def _import(
    org: Organisation, actor: User | None, path: Path, *, name: str, source: str, licence: str, description: str
) -> ModelVersion:
    check_model_name(name)
    if not _FILE_FORM.fullmatch(path.name) or not path.name.lower().endswith(".gguf"):
        raise ApiError(
            "invalid_file_name",
            "The file must be named *.gguf with letters, digits, dots, dashes and underscores only. Rename it and try again.",
            field="path",
            status=422,
        )
    try:
        sha256, size = digest_of(path)
        known = known_version(org, name, set_digest({path.name: sha256}))
        if known is not None and store().holds(sha256, size):
            return known
        with store().stage(path) as staged:
            verdict = verify({path.name: staged.path})
            where = Provenance(org, actor, name, source, licence=licence, description=description)
            return keep_version({path.name: staged}, verdict, where)
    except Refused as refused:
        raise FileRefused(path.name, refused) from None
