"""What people do with imports: start one, send parts of an upload, cancel."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F, Sum
from django.utils import timezone

from berth.catalog import staging
from berth.catalog.credentials import find_credential
from berth.catalog.errors import Refused
from berth.catalog.import_models import FINAL, ImportState
from berth.catalog.intake.kinds import MAX_FILES, check_name, check_suffix
from berth.catalog.models import ImportFile, ImportPart, ModelImport, ModelVersion
from berth.catalog.references import check_quota
from berth.catalog.services import check_model_name
from berth.catalog.sources.hub import HubSource
from berth.catalog.sources.opening import open_source
from berth.catalog.sources.upload import PART_BYTES, parts_of
from berth.orgs.models import Organisation, User
from berth.web.errors import ApiError, Conflict, Forbidden, NotFound
from berth.web.events import publish_event

MOST_RUNNING: Final = 20  # imports of an organisation that are not over
MOST_FILE: Final = 1 << 40  # bytes
_KINDS: Final = {"hub": "hub", "s3": "s3", "url": "bearer"}
_FIELDS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {  # needed, allowed besides
    "hub": (("repository",), ("revision", "files", "endpoint", "credential")),
    "s3": (("uri", "credential"), ("files",)),
    "url": (("urls",), ("credential",)),
    "path": (("path",), ("files",)),
    "upload": (("upload",), ()),
}
_PATTERN: Final = re.compile(r"[\w.*?/\[\]-]{0,200}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def start_import(org: Organisation, actor: User, body: Mapping[str, Any]) -> ModelImport:
    """Starts an import; its files come later, when a worker takes it up, or by `receive_part`. `body`: source, name, licence,
    description, base, and what the source needs. Raises ApiError, Forbidden."""
    source, name = body["source"], body["name"]
    check_model_name(name)
    asked = _asked(source, body)
    if source == "path" and not actor.is_operator:
        raise Forbidden("operator")
    if ModelImport.objects.for_org(org).exclude(state__in=FINAL).count() >= MOST_RUNNING:
        raise Conflict(
            "too_many_imports", f"{MOST_RUNNING} imports are on their way. Wait for one to end, or cancel one."
        )
    run = ModelImport(
        org=org,
        name=name,
        source=source,
        request=asked,
        licence=body.get("licence", ""),
        description=body.get("description", ""),
        credential=find_credential(org, body["credential"], _KINDS[source]) if body.get("credential") else None,
        base=find_version(org, body["base"]) if body.get("base") else None,
        created_by=actor,
        state=ImportState.RECEIVING if source == "upload" else ImportState.QUEUED,
    )
    files = _upload_files(body["upload"]) if source == "upload" else []
    if source != "upload":
        open_source(run)  # nothing is asked yet; what is wrong with the request is told at once
    return _saved(run, files)


@transaction.atomic
def _saved(run: ModelImport, files: Sequence[Mapping[str, Any]]) -> ModelImport:
    if files:
        run.bytes_total = sum(each["size"] for each in files)
        check_quota(run.org, run.bytes_total)
    run.save(force_insert=True)
    ImportFile.objects.for_org(run.org).bulk_create(
        ImportFile(org=run.org, run=run, name=each["name"], size=each["size"], sha256=each.get("sha256", ""))
        for each in files
    )
    _announce(run)
    return run


def _asked(source: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """What the source needs, and nothing of another. Raises ApiError."""
    needed, allowed = _FIELDS[source]
    own = {*needed, *allowed}
    for field in needed:
        if not body.get(field):
            raise ApiError("invalid", f"An import from this source needs its {field}.", field=field)
    for field in {each for both in _FIELDS.values() for each in (*both[0], *both[1])} - own:
        if body.get(field):
            raise ApiError("invalid", f"An import from this source has no {field}. Leave it out.", field=field)
    if not _PATTERN.fullmatch(body.get("files", "")) or ".." in body.get("files", ""):
        raise ApiError("invalid", "A pattern of file names looks like *Q4_K_M* or folder/*.", field="files", status=422)
    asked = {field: body[field] for field in own - {"upload"} if body.get(field)}
    if source == "hub":
        asked.setdefault("revision", "main")
        HubSource(asked.get("endpoint") or settings.HUB_ENDPOINT, asked["repository"], asked["revision"])
    return asked


def _upload_files(files: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Refuses by name and size alone, before a byte is sent. Raises ApiError."""
    if len(files) > MAX_FILES or len({each["name"] for each in files}) != len(files):
        raise ApiError("invalid", f"An upload has 1 to {MAX_FILES} files, each name once.", field="upload", status=422)
    for each in files:
        try:
            check_name(each["name"])
            check_suffix(each["name"])
        except Refused as refused:
            raise ApiError(
                refused.code, f"{refused.file} cannot be taken in: {refused.message}", field="upload",
                params={"file": refused.file}, status=422,
            ) from None  # fmt: skip
        if not 0 < each["size"] <= MOST_FILE:
            raise ApiError(
                "file_empty", f"{each['name']} is empty, or larger than any model.", field="upload", status=422
            )
    return list(files)


def find_version(org: Organisation, text: str) -> ModelVersion:
    """`name` (its newest version) or `name@3`. Raises ApiError."""
    name, _, number = text.partition("@")
    found = ModelVersion.objects.for_org(org).filter(model__name=name, deleted_at=None).order_by("-number")
    if number:
        found = found.filter(number=int(number) if number.isdecimal() and len(number) < 9 else 0)
    version = found.first()
    if version is None:
        raise ApiError(
            "base_unknown", "There is no such model in this organisation to be the base.", field="base", status=422
        )
    return version


def find_import(org: Organisation, import_id: UUID) -> ModelImport:
    """Raises NotFound."""
    run = ModelImport.objects.for_org(org).filter(pk=import_id).select_related("credential", "version__model").first()
    if run is None:
        raise NotFound("import")
    return run


def find_file(run: ModelImport, name: str) -> ImportFile:
    """Raises NotFound."""
    file = ImportFile.objects.for_org(run.org_id).filter(run=run, name=name).first()
    if file is None:
        raise NotFound("file")
    return file


def receive_part(
    org: Organisation, import_id: UUID, name: str, number: int, content: bytes, sha256: str
) -> ModelImport:
    """Keeps a part of an upload; the same part again is harmless. With the last one the import goes on by itself.

    Raises ApiError for a part that is not whole, NotFound, Conflict when the import takes no parts any more.
    """
    run = find_import(org, import_id)
    file = find_file(run, name)
    if run.source != "upload" or file.size is None or number >= parts_of(file.size):
        raise NotFound("part")
    if run.state != ImportState.RECEIVING:
        raise Conflict("not_receiving", "This import takes no parts any more: all are there, or it is over.")
    expected = min(PART_BYTES, file.size - number * PART_BYTES)
    if len(content) != expected:
        raise ApiError(
            "part_size", f"This part has {len(content)} bytes instead of {expected}. Send it again.", status=422,
            params={"expected": expected},
        )  # fmt: skip
    told = hashlib.sha256(content).hexdigest()
    if not _DIGEST.fullmatch(sha256) or not hmac.compare_digest(told, sha256):
        raise ApiError("part_checksum", "This part did not arrive as it was sent (SHA-256). Send it again.", status=422)
    staging.keep_part(run.pk, file.pk, number, content)
    return _noted(run, file, number, len(content), told)


@transaction.atomic
def _noted(run: ModelImport, file: ImportFile, number: int, size: int, sha256: str) -> ModelImport:
    locked = ModelImport.objects.for_org(run.org_id).select_for_update().get(pk=run.pk)
    if locked.state != ImportState.RECEIVING:
        return locked
    _, fresh = ImportPart.objects.for_org(run.org_id).update_or_create(
        file=file, number=number, defaults={"org_id": run.org_id, "size": size, "sha256": sha256}
    )
    if fresh:
        ImportFile.objects.for_org(run.org_id).filter(pk=file.pk).update(done=F("done") + size)
        locked.bytes_done += size
    locked.check_at = timezone.now()
    if locked.bytes_done >= (locked.bytes_total or 0) and _complete(locked):
        locked.state = ImportState.QUEUED
        _announce(locked)
    locked.save(update_fields=["bytes_done", "state", "check_at"])
    return locked


def _complete(run: ModelImport) -> bool:
    parts = ImportPart.objects.for_org(run.org_id).filter(file__run=run)
    return bool(parts.aggregate(total=Sum("size"))["total"] == run.bytes_total)


def missing_parts(run: ModelImport) -> dict[str, list[int]]:
    """Numbers of the parts that have not arrived, by file name; only while it receives."""
    if run.state != ImportState.RECEIVING:
        return {}
    there: dict[str, set[int]] = {}
    for name, number in (
        ImportPart.objects.for_org(run.org_id).filter(file__run=run).values_list("file__name", "number")
    ):
        there.setdefault(name, set()).add(number)
    files = ImportFile.objects.for_org(run.org_id).filter(run=run).values_list("name", "size")
    return {name: sorted(set(range(parts_of(size or 0))) - there.get(name, set())) for name, size in files}


@transaction.atomic
def cancel_import(org: Organisation, import_id: UUID) -> ModelImport:
    """Ends it: at once if nobody works on it, else within a second or two. Raises NotFound; one that is over stays as it is."""
    run = ModelImport.objects.for_org(org).select_for_update().filter(pk=import_id).first()
    if run is None:
        raise NotFound("import")
    if run.final:
        return run
    now = timezone.now()
    run.cancelled_at = run.cancelled_at or now
    if run.lease_until is None or run.lease_until < now:
        run.state, run.finished_at, run.rate = ImportState.CANCELLED, now, None
        run.lease_token = run.lease_until = None
        transaction.on_commit(lambda: _dropped(run.pk))
    run.save(update_fields=["cancelled_at", "state", "finished_at", "rate", "lease_token", "lease_until"])
    _announce(run)
    return run


def _dropped(import_id: UUID) -> None:
    staging.drop_scratch(import_id)
    staging.drop_parts(import_id)


def _announce(run: ModelImport) -> None:
    told = {"kind": "import", "import": str(run.pk), "state": str(run.state)}
    publish_event(run.org_id, "models", run.name, None, told)
