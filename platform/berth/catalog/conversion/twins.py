"""Conversions of the same bytes into the same thing, of one organisation: done once, whatever the models are called.

Organisations never share: whether somebody else has a model could be told from how quickly a conversion ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.db.models import Q

from berth.catalog.conversion.models import FINAL, Conversion, ConversionState
from berth.catalog.intake.refused import Refused
from berth.catalog.models import Artefact, ArtefactFile, ModelVersion
from berth.catalog.recording import set_digest

_PLAIN: Final = ("BF16", "F16", "F32")
_LOADED: Final = ("gguf", "safetensors")  # formats that are made without being asked for


def files_of(source: Artefact) -> list[ArtefactFile]:
    """All that a conversion reads, by their names; an adapter's with those of its base. Raises Refused."""
    rows = ArtefactFile.objects.for_org(source.org_id)
    files = list(rows.filter(artefact=source).order_by("name"))
    if source.format == "lora":
        base = Artefact.objects.for_org(source.org_id).filter(version=source.version.base, format="safetensors")
        plain = base.filter(quantization__in=_PLAIN).first()
        if plain is None:
            raise Refused(
                "base_missing", "the adapter's base has no 16-bit safetensors here. Import or convert the base first."
            )
        files += rows.filter(artefact=plain).order_by("name")
    return files


def made_already(conversion: Conversion) -> Artefact | None:
    """What another version of the organisation has of the same bytes."""
    rows = Artefact.objects.for_org(conversion.org_id).filter(
        format=conversion.format, quantization=conversion.quantization, version__deleted_at=None
    )
    others = rows.exclude(made_from=None).exclude(version=conversion.source.version_id).select_related("made_from")
    ours = _content(conversion.source)
    same = (each for each in others.order_by("pk") if each.made_from and _content(each.made_from) == ours)
    return next(same, None) if ours else None


def ahead(conversion: Conversion) -> Conversion | None:
    """One that is not over yet and was asked for before: this one waits for what comes of it."""
    earlier = Q(created_at__lt=conversion.created_at) | Q(created_at=conversion.created_at, pk__lt=conversion.pk)
    return next(_like(conversion.source, ~Q(state__in=FINAL) & earlier & _same_target(conversion)), None)


def refused_before(conversion: Conversion) -> Conversion | None:
    """One that made it of the same bytes and found it broken."""
    return next(_like(conversion.source, Q(state=ConversionState.REFUSED) & _same_target(conversion)), None)


def refusals(version: ModelVersion) -> dict[str, str]:
    """Quantizations, as GGUF and safetensors, that were made of a version's bytes, measured and found too bad to be kept, with the sentence
    that says so."""
    rows = Conversion.objects.for_org(version.org_id).filter(state=ConversionState.REFUSED, format__in=_LOADED)
    own = list(rows.filter(source__version=version).order_by("created_at"))
    for source in Artefact.objects.for_org(version.org_id).filter(version=version):
        own += _like(source, Q(state=ConversionState.REFUSED, format__in=_LOADED))
    return {each.quantization: each.message for each in own}


def _same_target(conversion: Conversion) -> Q:
    return Q(format=conversion.format, quantization=conversion.quantization)


def _like(source: Artefact, which: Q) -> Iterator[Conversion]:
    """Conversions of other versions' artefacts with the same bytes."""
    rows = Conversion.objects.for_org(source.org_id).filter(which).exclude(source=source)
    ours = _content(source)
    for each in rows.select_related("source__version").order_by("created_at"):
        if ours and _content(each.source) == ours:
            yield each


def _content(source: Artefact) -> str:
    """Equal for equal bytes under equal names; empty: its files are gone."""
    try:
        files = files_of(source)
    except Refused:
        return ""
    return set_digest({f"{each.artefact_id == source.pk}/{each.name}": each.sha256 for each in files}) if files else ""
