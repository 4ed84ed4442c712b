"""Conversions that a deployment needs: the same queue, and known from those that somebody asked for."""

from __future__ import annotations

from berth.catalog.conversion.models import FINAL, Conversion
from berth.catalog.conversion.services import start_conversion
from berth.catalog.models import ModelVersion
from berth.orgs.models import Organisation, User


def start_for(
    org: Organisation, actor: User | None, version: ModelVersion, quantization: str, kind: str
) -> tuple[Conversion, bool]:
    """The conversion that makes it, as the format `kind`, and whether it was not under way before. Raises ApiError when it cannot be
    asked for."""
    running = Conversion.objects.for_org(org).filter(source__version=version, format=kind, quantization=quantization)
    before = running.exclude(state__in=FINAL).values_list("pk", flat=True).first()
    made = start_conversion(org, actor, version.model.name, version.number, quantization, kind)
    return made, made.pk != before
