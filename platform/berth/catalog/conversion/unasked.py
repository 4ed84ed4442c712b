"""Conversions that a deployment needs: whether they can be made here, what was tried and is no good, and asking for one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from berth.catalog.conversion.models import FINAL, Conversion, ConversionState
from berth.catalog.conversion.services import start_conversion
from berth.catalog.models import ModelVersion
from berth.orgs.models import Organisation, User

_BESIDE: Final = Path(__file__).resolve().parents[4] / ".venv-converters" / "bin" / "python"


def converters_here() -> bool:
    """Whether there is an interpreter for conversions that need PyTorch: the one `BERTH_CONVERTER_PYTHON` names, else the one that
    `make converters` makes."""
    named = os.environ.get("BERTH_CONVERTER_PYTHON", "")
    return Path(named).exists() if named else _BESIDE.exists()


def refused_before(version: ModelVersion) -> dict[str, str]:
    """GGUF quantizations of a version that were made, measured and found broken, with the sentence that says so. The same files give the
    same again, so they are not tried twice."""
    rows = Conversion.objects.for_org(version.org_id).filter(
        source__version=version, format="gguf", state=ConversionState.REFUSED
    )
    return dict(rows.order_by("created_at").values_list("quantization", "message"))


def start_for(org: Organisation, actor: User | None, version: ModelVersion, quantization: str) -> tuple[Conversion, bool]:
    """The conversion that makes it, and whether it was not under way before. Raises ApiError when it cannot be asked for."""
    running = Conversion.objects.for_org(org).filter(source__version=version, format="gguf", quantization=quantization)
    before = running.exclude(state__in=FINAL).values_list("pk", flat=True).first()
    made = start_conversion(org, actor, version.model.name, version.number, quantization)
    return made, made.pk != before
