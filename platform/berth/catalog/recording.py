"""From files that were found sound to a model version: the contents are put, then all rows are made in one transaction."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from django.db import transaction
from django.utils import timezone

from berth.catalog import references
from berth.catalog.facts import to_json
from berth.catalog.files import Staged
from berth.catalog.import_models import ModelImport
from berth.catalog.intake.refused import Refused
from berth.catalog.intake.verdict import Verdict
from berth.catalog.models import Artefact, ArtefactFile, Model, ModelVersion
from berth.catalog.store import store
from berth.orgs.models import Organisation, User
from berth.web.events import publish_event

Heavy = Callable[[Callable[[], None]], None]  # runs what takes long

TRIES: Final = 3  # a content can be swept away between putting and recording, once in a blue moon


@dataclass(frozen=True)
class Provenance:
    """Where a version comes from, and whose it is."""

    org: Organisation
    actor: User | None
    name: str
    source: str
    origin: str = ""
    licence: str = ""
    description: str = ""
    base: ModelVersion | None = None


def set_digest(files: Mapping[str, str]) -> str:
    """Of names and digests: equal for equal sets of files."""
    lines = "".join(f"{name}\0{sha256}\n" for name, sha256 in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def known_version(org: Organisation, name: str, digest: str) -> ModelVersion | None:
    """The version of that model with exactly these files."""
    found = ModelVersion.objects.for_org(org).filter(model__name=name, digest=digest, deleted_at=None)
    return found.select_related("model").order_by("number").first()


def keep_version(
    files: Mapping[str, Staged],
    verdict: Verdict,
    where: Provenance,
    *,
    run: ModelImport | None = None,
    heavy: Heavy = lambda work: work(),
) -> ModelVersion:
    """Puts the files that are needed and makes the version, or finds the one with the same files. `run`: the import that brought
    them. Raises Refused (an adapter without a base), StoreFull, StoreUnavailable, QuotaExceeded."""
    if verdict.adapter is not None and where.base is None:
        told = f" It says that it was trained on {verdict.adapter.base_name}." if verdict.adapter.base_name else ""
        raise Refused(
            "adapter_base_missing",
            f"it is an adapter, which only works on top of its base.{told} Add the base first, and name it when you import the adapter.",
            base=verdict.adapter.base_name,
        )
    needed = {name: files[name] for name in verdict.roles}
    for attempt in range(TRIES):
        _put(needed, heavy)
        try:
            return _record(needed, verdict, where, run)
        except references.ContentGone:
            if attempt == TRIES - 1:
                raise
    raise AssertionError("unreachable")


def keep_artefact(
    version: ModelVersion,
    files: Mapping[str, Staged],
    verdict: Verdict,
    *,
    made_from: Artefact,
    quality: Mapping[str, object] | None,
) -> Artefact:
    """Puts what a conversion made and adds it to the version, or finds it there. Raises as `keep_version`."""
    for attempt in range(TRIES):
        _put(files)
        try:
            return _record_artefact(version, files, verdict, made_from, quality)
        except references.ContentGone:
            if attempt == TRIES - 1:
                raise
    raise AssertionError("unreachable")


@transaction.atomic
def _record_artefact(
    version: ModelVersion,
    files: Mapping[str, Staged],
    verdict: Verdict,
    made_from: Artefact,
    quality: Mapping[str, object] | None,
) -> Artefact:
    org = Organisation.objects.select_for_update().get(pk=version.org_id)
    same = {"version": version, "format": verdict.format, "quantization": verdict.quantization[:16]}
    known = Artefact.objects.for_org(org).filter(**same).first()
    if known is not None:
        return known
    contents = [(each.sha256, each.size) for each in files.values()]
    references.check_quota(org, references.new_bytes(org, contents))
    references.hold(contents)
    artefact = _artefact_of(version, files, verdict)
    artefact.made_from, artefact.quality = made_from, dict(quality) if quality is not None else None
    artefact.save(update_fields=["made_from", "quality"])
    model = version.model
    publish_event(org.pk, "models", model.name, version.number, {"kind": "artefact_added", "version": version.number})
    return artefact


@transaction.atomic
def share_artefact(version: ModelVersion, like: Artefact, *, made_from: Artefact) -> Artefact:
    """Adds to a version what another one of its organisation has, with the same contents and figures. Raises ContentGone when those were
    removed meanwhile."""
    org = Organisation.objects.select_for_update().get(pk=version.org_id)
    rows = Artefact.objects.for_org(org)
    known = rows.filter(version=version, format=like.format, quantization=like.quantization).first()
    if known is not None:
        return known
    files = list(ArtefactFile.objects.for_org(org).filter(artefact=like))
    if not files:
        raise references.ContentGone("")
    references.hold((each.sha256, each.size) for each in files)
    copied = ("format", "quantization", "engines", "size", "facts", "adapter", "quality")
    artefact = rows.create(
        org=org, version=version, made_from=made_from, **{name: getattr(like, name) for name in copied}
    )
    ArtefactFile.objects.for_org(org).bulk_create(
        ArtefactFile(org=org, artefact=artefact, name=each.name, role=each.role, size=each.size, sha256=each.sha256)
        for each in files
    )
    publish_event(
        org.pk, "models", version.model.name, version.number, {"kind": "artefact_added", "version": version.number}
    )
    return artefact


def _artefact_of(version: ModelVersion, files: Mapping[str, Staged], verdict: Verdict) -> Artefact:
    """The rows of an artefact whose contents are held."""
    org = version.org
    artefact = Artefact.objects.for_org(org).create(
        org=org,
        version=version,
        format=verdict.format,
        quantization=verdict.quantization[:16],
        engines=verdict.engines,
        size=sum(each.size for each in files.values()),
        facts=to_json(verdict.artefact),
        adapter=to_json(verdict.adapter) if verdict.adapter else None,
    )
    ArtefactFile.objects.for_org(org).bulk_create(
        ArtefactFile(
            org=org, artefact=artefact, name=name, role=verdict.roles[name], size=staged.size, sha256=staged.sha256
        )
        for name, staged in files.items()
    )
    return artefact


def _put(files: Mapping[str, Staged], heavy: Heavy = lambda work: work()) -> None:
    kept = store()
    for staged in files.values():
        references.touch(staged.sha256, staged.size, timezone.now())
        if staged.path.exists():
            heavy(functools.partial(kept.put, staged))


@transaction.atomic
def _record(files: Mapping[str, Staged], verdict: Verdict, where: Provenance, run: ModelImport | None) -> ModelVersion:
    org = Organisation.objects.select_for_update().get(pk=where.org.pk)  # one quota, one version number at a time
    digest = set_digest({name: staged.sha256 for name, staged in files.items()})
    known = known_version(org, where.name, digest)
    if known is not None:
        return known
    contents = [(each.sha256, each.size) for each in files.values()]
    references.check_quota(org, references.new_bytes(org, contents), run)
    references.hold(contents)
    model, _ = Model.objects.for_org(org).get_or_create(
        org=org, name=where.name, defaults={"description": where.description[:400]}
    )
    latest = ModelVersion.objects.for_org(org).filter(model=model).order_by("-number").first()
    facts = verdict.model
    version = ModelVersion.objects.for_org(org).create(
        org=org,
        model=model,
        number=latest.number + 1 if latest else 1,
        source=where.source,
        origin=where.origin[:400],
        licence=(where.licence or verdict.licence)[:80],
        facts=to_json(facts)
        if facts is not None
        else (where.base.facts if where.base else {}),  # an adapter's are its base's
        base=where.base,
        digest=digest,
        notes=msgspec.to_builtins(verdict.notes),
        created_by=where.actor,
    )
    _artefact_of(version, files, verdict)
    publish_event(org.pk, "models", where.name, version.number, {"kind": "version_added", "version": version.number})
    return version
