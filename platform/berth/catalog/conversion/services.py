"""What people do with conversions: ask for one, stop one."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from berth.catalog.conversion import sample, targets
from berth.catalog.conversion.models import FINAL, Conversion, ConversionState
from berth.catalog.models import Artefact, ModelVersion
from berth.orgs.models import Organisation, User
from berth.web.errors import ApiError, NotFound
from berth.web.events import publish_event


def start_conversion(
    org: Organisation,
    actor: User | None,
    model: str,
    number: int,
    quantization: str,
    format: str = "gguf",  # noqa: A002
    sample_text: str | None = None,
) -> Conversion:
    """Asks for an artefact of a version in another format or quantization. Asked for again while it runs, it is the same conversion.

    `sample_text`: to measure with, beside the neutral text (see `sample`). Raises NotFound, and ApiError if the version has that artefact
    already, nothing that it could be made of, or runs that conversion without this text.
    """
    version = _version(org, model, number)
    artefacts = list(Artefact.objects.for_org(org).filter(version=version))
    label = f"{format} {quantization}"
    if any((each.format, each.quantization) == (format, quantization) for each in artefacts):
        raise ApiError(
            "artefact_exists",
            f"Version {number} of {model} has an artefact {label} already. Deploy it.",
            field="quantization",
            status=409,
        )
    best = targets.best_source([(each.format, each.quantization) for each in artefacts], format, quantization)
    if best is None:
        raise ApiError("no_source", _no_source(format, quantization, label), field="quantization", status=422)
    source = next(each for each in artefacts if (each.format, each.quantization) == best)
    wanted = {"source": source, "format": format, "quantization": quantization}
    try:
        with transaction.atomic():
            made = Conversion.objects.for_org(org).create(org=org, created_by=actor, **wanted)
            if sample_text is not None:
                sample.keep(made, sample_text)
            told(made)
            return made
    except IntegrityError:
        if sample_text is not None:
            raise ApiError(
                "conversion_running",
                f"{label} is being made already, without this sample text. Wait for it, or cancel it and ask again.",
                field="sample_text",
                status=409,
            ) from None
        return _running(org).get(**wanted)


def _no_source(format: str, quantization: str, label: str) -> str:  # noqa: A002
    if quantization not in targets.MADE.get(format, ()):
        return (
            f"{label} cannot be made here. As {format}, these can: {', '.join(targets.MADE.get(format, ())) or 'none'}."
        )
    if format == "gguf":
        return f"{label} is made of a GGUF artefact or of 16-bit safetensors, and this version has neither."
    if (format, quantization) == ("safetensors", "BF16"):
        return f"{label} is made of a GGUF artefact or of an adapter with its base, and this version has neither."
    return f"{label} is made of 16-bit safetensors, and this version has none. Convert it to safetensors BF16 first."


def cancel_conversion(org: Organisation, conversion_id: str) -> Conversion:
    """Stops it within seconds; what was made so far goes. One that has ended stays as it ended. Raises NotFound."""
    conversion = get_conversion(org, conversion_id)
    _running(org).filter(pk=conversion.pk, cancelled_at=None).update(cancelled_at=timezone.now())
    conversion.refresh_from_db()
    return conversion


def get_conversion(org: Organisation, conversion_id: str) -> Conversion:
    """Raises NotFound."""
    found = conversions_of(org).filter(pk=conversion_id).first()
    if found is None:
        raise NotFound("conversion")
    return found


def conversions_of(org: Organisation) -> QuerySet[Conversion]:
    """Newest first."""
    rows = Conversion.objects.for_org(org).select_related("source__version__model", "artefact")
    return rows.order_by("-created_at", "-pk")


def told(conversion: Conversion) -> None:
    """Tells whoever looks that something moved."""
    data: dict[str, Any] = {
        "kind": "conversion",
        "id": str(conversion.pk),
        "state": conversion.state,
        "step": conversion.step,
        "done": conversion.done,
        "total": conversion.total,
    }
    publish_event(conversion.org_id, "models", conversion.source.version.model.name, None, data)


def _version(org: Organisation, model: str, number: int) -> ModelVersion:
    rows = ModelVersion.objects.for_org(org).filter(model__name=model, number=number, deleted_at=None)
    found = rows.first()
    if found is None:
        raise NotFound("model_version")
    return found


def _running(org: Organisation) -> QuerySet[Conversion]:
    return Conversion.objects.for_org(org).exclude(state__in=FINAL)


__all__ = [
    "ConversionState",
    "cancel_conversion",
    "conversions_of",
    "get_conversion",
    "start_conversion",
    "told",
]
