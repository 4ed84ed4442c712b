"""Rows of preparations: what a deployment waits for before a revision can run, how far that is, and letting go of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.db.models import QuerySet

from berth.catalog.conversion.models import Conversion, ConversionState
from berth.catalog.conversion.services import cancel_conversion
from berth.deployments.models import Deployment, Revision
from berth.deployments.preparation import Preparation, Prepared
from berth.web.errors import Conflict

_RUNNING: Final = (ConversionState.CONVERTING, ConversionState.MEASURING)


def open_preparation(deployment: Deployment) -> Preparation | None:
    return _rows(deployment).filter(state=Prepared.OPEN).first()


def latest_preparation(deployment: Deployment) -> Preparation | None:
    return _rows(deployment).first()


def is_placeholder(revision: Revision | None) -> bool:
    """Whether its files were only to be made when it was planned: it names what they are made of, and never runs."""
    choice = (revision.plan or {}).get("choice") if revision is not None else None
    return bool(choice and choice.get("made_of"))


def refuse_placeholder(revision: Revision) -> None:
    """Raises Conflict for one that cannot run."""
    if is_placeholder(revision):
        raise Conflict(
            "never_made",
            f"The files of revision {revision.number} were still to be made when it was planned. Choose the one that followed it.",
        )


def end(preparation: Preparation, state: Prepared, now: datetime, code: str = "", message: str = "") -> None:
    preparation.state, preparation.code, preparation.message, preparation.ended_at = state, code, message[:600], now
    preparation.save(update_fields=["state", "code", "message", "ended_at"])


def supersede(deployment: Deployment, now: datetime) -> None:
    """Nobody wants any more what was being prepared: its conversion stops, unless somebody else waits for it or asked for it."""
    preparation = open_preparation(deployment)
    if preparation is None:
        return
    end(preparation, Prepared.CANCELLED, now)
    conversion = preparation.conversion
    if conversion is not None and not conversion.final and preparation.ours and not _others_wait(preparation):
        cancel_conversion(deployment.org, str(conversion.pk))


def expect_replicas(deployment: Deployment, count: int) -> None:
    """Of what is being prepared, in the caller's transaction: another number of replicas begins nothing anew."""
    _rows(deployment).filter(state=Prepared.OPEN).update(replicas=count)


def begun_for_a_deployment(preparation: Preparation) -> bool:
    """Whether its conversion was begun for a deployment, this or another: such a one may stop when nobody waits any more."""
    return preparation.ours or _same(preparation).filter(ours=True).exists()


def progress_of(preparation: Preparation | None) -> dict[str, Any] | None:
    """As `PreparationOut` shows it. None: nothing is prepared, and nothing failed to be."""
    if preparation is None or preparation.state in (Prepared.DONE, Prepared.CANCELLED):
        return None
    conversion = preparation.conversion
    step = "waiting" if conversion is None or conversion.final else str(conversion.state)
    running = conversion if conversion is not None and step in _RUNNING else None
    return {
        "state": preparation.state,
        "quantization": preparation.quantization,
        "step": step,
        "percent": None if running is None else _percent(running),
        "seconds_left": None if running is None else _left(running),
        "passed": preparation.passed,
        "code": preparation.code,
        "message": preparation.message,
    }


def sentence_of(preparation: Preparation) -> str:
    """What it does now, with how far it is."""
    shown = progress_of(preparation) or {}
    name, far = preparation.quantization, "" if shown.get("percent") is None else f" ({shown['percent']} %)"
    does = {
        "converting": f"{name} is being made{far}.",
        "measuring": f"{name} was made; its quality is being measured{far}.",
        "storing": f"{name} was made and measured; it is being stored.",
    }
    says = does.get(shown.get("step", ""), f"{name} is to be made; the conversion waits for its turn.")
    passed = [f"{each['quantization']} was passed over: {each['message']}" for each in preparation.passed]
    return " ".join([says, "It starts by itself.", *passed])[:400]


def _percent(conversion: Conversion) -> int | None:
    return min(100, 100 * conversion.done // conversion.total) if conversion.total else None


def _left(conversion: Conversion) -> float | None:
    return round(max(0, conversion.total - conversion.done) / conversion.rate, 1) if conversion.rate else None


def _others_wait(preparation: Preparation) -> bool:
    return _same(preparation).filter(state=Prepared.OPEN).exclude(pk=preparation.pk).exists()


def _same(preparation: Preparation) -> QuerySet[Preparation]:
    return Preparation.objects.for_org(preparation.org_id).filter(conversion=preparation.conversion)


def _rows(deployment: Deployment) -> QuerySet[Preparation]:
    rows = Preparation.objects.for_org(deployment.org_id).filter(deployment=deployment)
    return rows.select_related("conversion", "version__model", "created_by").order_by("-id")
