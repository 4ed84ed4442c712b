"""Moves conversions on: looks at each every few seconds, starts what is to run, and keeps what is finished.

Nothing is remembered between two looks but the row and the folder, so any worker of the machine can do the next one, and a worker that
dies loses nothing: the program goes on, or is started again and goes on from its journal.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.db.models import Q, QuerySet

from berth.catalog.conversion import sample, targets, twins
from berth.catalog.conversion.models import FINAL, Conversion, ConversionState
from berth.catalog.conversion.program import Failed, Folder, Made, Progress, Report, SourceFile, sources
from berth.catalog.conversion.services import told
from berth.catalog.errors import QuotaExceeded, Refused, StoreFull
from berth.catalog.files import staged_copy
from berth.catalog.intake.verify import verify
from berth.catalog.models import Artefact, ArtefactFile
from berth.catalog.recording import keep_artefact, share_artefact
from berth.catalog.references import ContentGone
from berth.catalog.store import store

LEASE: Final = timedelta(seconds=60)
AT_ONCE: Final = 1  # on one machine: a conversion uses all cores but one
PLACES: Final = 400  # tokens of the neutral text at which two artefacts are compared
_STORING_LEASE: Final = timedelta(minutes=15)  # one look copies and checks everything that was made
_TRIES: Final = 3
_MAY_PASS: Final = ("disk_trouble", "not_measurable", "killed")
# What a look writes. `cancelled_at` is somebody else's: it may be set while a look is at work, and must stay.
_OURS: Final = (
    "state", "step", "done", "total", "rate", "step_began_at", "fallbacks", "requantized", "quality", "code", "message",
    "artefact", "failures", "finished_at", "lease_machine", "lease_until",
)  # fmt: skip


def due(now: datetime) -> list[Any]:
    """Ids of what this machine should look at: what it works on, and what waits if it has room; oldest first."""
    rows = _rows().exclude(state__in=FINAL).order_by("created_at")
    mine = list(rows.filter(lease_machine=_machine(), lease_until__gt=now).values_list("pk", flat=True))
    room = max(0, AT_ONCE - len(mine))
    waiting = rows.filter(Q(lease_until=None) | Q(lease_until__lte=now)).select_related("source__version")
    next_ones = (each.pk for each in waiting if each.state != ConversionState.QUEUED or twins.ahead(each) is None)
    cancelled = rows.filter(cancelled_at__isnull=False, lease_until=None).values_list("pk", flat=True)
    return list(dict.fromkeys([*mine, *islice(next_ones, room), *cancelled]))


def look(conversion_id: Any, now: datetime) -> None:
    """One step, if nobody else is at it: no other machine by the lease, no other thread or process of this one by the folder."""
    folder = Folder(conversion_id)
    with folder.alone() as alone:
        if alone:
            _look(conversion_id, folder, now)


def _look(conversion_id: Any, folder: Folder, now: datetime) -> None:
    machine = _machine()
    free = Q(lease_until=None) | Q(lease_until__lte=now) | Q(lease_machine=machine)
    rows = _rows().exclude(state__in=FINAL).filter(pk=conversion_id)
    if not rows.filter(free).update(lease_machine=machine, lease_until=now + LEASE):
        return
    conversion = rows.select_related("org", "source__version__model", "created_by").get()
    before = (conversion.state, conversion.step, conversion.done)
    try:
        _step(conversion, folder, now)
    except Refused as refused:
        _end(conversion, folder, now, ConversionState.FAILED, refused.code, str(refused))
    except (StoreFull, QuotaExceeded) as error:
        _end(conversion, folder, now, ConversionState.FAILED, error.code, error.message)
    conversion.save(update_fields=_OURS)
    if before != (conversion.state, conversion.step, conversion.done):
        told(conversion)


def _step(conversion: Conversion, folder: Folder, now: datetime) -> None:
    if conversion.cancelled_at is not None:
        folder.stop()
        _end(conversion, folder, now, ConversionState.CANCELLED, "", "")
    elif conversion.state == ConversionState.QUEUED and _done_before(conversion, folder, now):
        pass
    elif folder.busy():
        _follow(conversion, folder, now)
    elif failed := folder.read("failure.json", Failed) or folder.killed():
        _failed(conversion, folder, now, failed)
    elif (made := folder.read("result.json", Made)) is None:
        conversion.state = ConversionState.CONVERTING
        folder.start("convert", job=str(conversion.pk), files=_source_files(conversion, folder),
                     target_format=conversion.format, target=conversion.quantization)  # fmt: skip
    elif conversion.source.format == "lora":
        # An adapter is there to change what its base predicts: there is nothing to compare a merged model with.
        _keep(conversion, folder, now, made, None)
    elif (report := folder.read("quality.json", Report)) is None:
        conversion.state = ConversionState.MEASURING
        folder.start(
            "quality", sample=sample.text_of(conversion),
            reference=_source_files(conversion, folder), measured=_made_files(folder, made), places=PLACES,
            reference_file=str(folder.reference_file),
        )  # fmt: skip
    else:
        _keep(conversion, folder, now, made, report)


def _done_before(conversion: Conversion, folder: Folder, now: datetime) -> bool:
    """Takes what came of the same bytes for another version. One with a text of its own to measure with is done itself."""
    if sample.text_of(conversion) is not None:
        return False
    if twins.ahead(conversion) is not None:
        conversion.lease_until = None  # it keeps no place while it waits
        return True
    if (refused := twins.refused_before(conversion)) is not None:
        conversion.fallbacks, conversion.requantized, conversion.quality = (
            refused.fallbacks,
            refused.requantized,
            refused.quality,
        )
        _end(conversion, folder, now, ConversionState.REFUSED, refused.code, refused.message)
        return True
    if (made := twins.made_already(conversion)) is None:
        return False
    try:
        conversion.artefact = share_artefact(conversion.source.version, made, made_from=conversion.source)
    except ContentGone:
        return False
    before = Conversion.objects.for_org(conversion.org).filter(artefact=made).first()
    if before is not None:
        conversion.fallbacks, conversion.requantized = before.fallbacks, before.requantized
    conversion.quality = conversion.artefact.quality
    _end(conversion, folder, now, ConversionState.DONE, "", "")
    return True


def _follow(conversion: Conversion, folder: Folder, now: datetime) -> None:
    progress = folder.read("progress.json", Progress)
    if progress is None:
        return
    if progress.step != conversion.step or conversion.step_began_at is None:
        conversion.step, conversion.step_began_at, conversion.rate = progress.step, now, None
    elif progress.done > 0:
        passed = (now - conversion.step_began_at).total_seconds()
        conversion.rate = progress.done / passed if passed > 0 else None
    conversion.done, conversion.total = progress.done, progress.total


def _failed(conversion: Conversion, folder: Folder, now: datetime, failed: Failed) -> None:
    """Again for what may pass, else it ends."""
    conversion.failures += 1
    if failed.reason in _MAY_PASS and conversion.failures < _TRIES:
        (folder.path / "failure.json").unlink(missing_ok=True)
        return
    _end(conversion, folder, now, ConversionState.FAILED, failed.reason, failed.message)


def _keep(conversion: Conversion, folder: Folder, now: datetime, made: Made, report: Report | None) -> None:
    conversion.fallbacks, conversion.requantized = made.fallbacks, made.requantized
    conversion.quality = quality = None if report is None else _quality(conversion, report, now)
    figures = [] if quality is None else [quality, quality["sample"]]
    short = next((why for each in figures if each and (why := targets.falls_short(each))), None)
    if short is not None:
        message = f"The {conversion.quantization} artefact was made and is not kept: {short}. Choose a quantization with more bits."
        _end(conversion, folder, now, ConversionState.REFUSED, "quality_too_low", message)
        return
    conversion.state, conversion.lease_until = ConversionState.STORING, now + _STORING_LEASE
    conversion.save(update_fields=["state", "lease_until"])
    verdict = verify({file.name: folder.path / file.name for file in made.files})
    if (verdict.format, verdict.quantization) != (conversion.format, conversion.quantization):
        found = f"{verdict.format} {verdict.quantization}"
        raise Refused("not_as_asked", f"what was made is {found} and not {conversion}.")
    with ExitStack() as staged:
        files = {
            name: staged.enter_context(staged_copy(folder.path / name, store().incoming)) for name in verdict.roles
        }
        conversion.artefact = keep_artefact(
            conversion.source.version, files, verdict, made_from=conversion.source, quality=quality
        )
    _end(conversion, folder, now, ConversionState.DONE, "", "")


def _quality(conversion: Conversion, report: Report, now: datetime) -> dict[str, Any]:
    return {
        **report.quality,
        "perplexity_change": report.perplexity_change,
        "sample": None
        if report.sample is None
        else {**report.sample, "perplexity_change": report.sample_perplexity_change},
        "text": report.text,
        "engine": report.engine,
        "reference": conversion.source.quantization,
        "measured_at": now.isoformat(),
    }


def _end(
    conversion: Conversion, folder: Folder, now: datetime, state: ConversionState, code: str, message: str
) -> None:
    conversion.state, conversion.code, conversion.message = state, code, message[:600]
    conversion.finished_at, conversion.lease_until = now, None
    folder.remove()
    sample.forget(conversion)


def _source_files(conversion: Conversion, folder: Folder) -> list[dict[str, Any]]:
    """All files, by their names; an adapter's with those of its base."""
    source = conversion.source
    return sources(
        [
            SourceFile(str(_local(each, folder)), _role(each, source), each.size, each.sha256, each.name)
            for each in twins.files_of(source)
        ]
    )


def _role(file: ArtefactFile, source: Artefact) -> str:
    return "adapter" if source.format == "lora" and file.artefact_id == source.pk else file.role


def _local(file: ArtefactFile, folder: Folder) -> Path:
    """Where the program reads it: in the store, or fetched beside its work where the store is no folder."""
    place = store().local_path(file.sha256)
    if place is not None:
        return place
    copy = folder.path / f"source-{file.sha256}"
    if not copy.exists() or copy.stat().st_size != file.size:
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = copy.with_suffix(".part")
        with draft.open("wb") as target:
            target.writelines(store().read(file.sha256))
        draft.replace(copy)
    return copy


def _made_files(folder: Folder, made: Made) -> list[dict[str, Any]]:
    return sources(
        [SourceFile(str(folder.path / each.name), each.role, each.size, each.sha256, each.name) for each in made.files]
    )


def _machine() -> str:
    return f"{socket.gethostname()}:{settings.BERTH_HOME}"[:128]


def _rows() -> QuerySet[Conversion]:
    return Conversion.objects.across_orgs("conversions of all organisations wait in one queue")
