"""An organisation's own text for the quality check: sealed in the database, in the clear on no disk, and gone when the
conversion ends.

It never stands in a log line, an error, a task's arguments or a program's: the program that measures reads it from memory
(`program.Folder.start`).
"""

from __future__ import annotations

from typing import Final

from berth.catalog.conversion.models import Conversion, ConversionSample
from berth.catalog.errors import Refused
from berth.catalog.sealing import SealBroken, seal, unseal

LEAST: Final = 200  # characters: fewer are too few places to compare
MOST: Final = 100_000


def keep(conversion: Conversion, text: str) -> None:
    sealed = seal({"text": text}, org_id=conversion.org_id, row_id=conversion.pk)
    ConversionSample.objects.for_org(conversion.org_id).create(
        org_id=conversion.org_id, conversion=conversion, sealed=sealed
    )


def text_of(conversion: Conversion) -> str | None:
    """None: none was given. Raises Refused if it can no longer be opened."""
    row = ConversionSample.objects.for_org(conversion.org_id).filter(conversion=conversion).first()
    if row is None:
        return None
    try:
        return unseal(bytes(row.sealed), org_id=conversion.org_id, row_id=conversion.pk)["text"]
    except SealBroken:
        raise Refused(
            "sample_unreadable",
            "the sample text can no longer be opened, because the platform's secret key has changed. Ask for the conversion again.",
        ) from None


def forget(conversion: Conversion) -> None:
    ConversionSample.objects.for_org(conversion.org_id).filter(conversion=conversion).delete()
