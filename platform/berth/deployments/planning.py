"""From rows and offers to the planner's plain values, and back to what a revision stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings

from berth.catalog.conversion.converters import converters_installed
from berth.catalog.conversion.twins import refusals
from berth.catalog.facts import artefact_facts, model_facts
from berth.catalog.models import Artefact, ModelVersion
from berth.compute.provider import Offer, Provider, ProviderError
from berth.compute.providers import machine
from berth.compute.registry import default_provider
from berth.deployments.adapters import engines_of
from berth.deployments.corrections import factors
from berth.deployments.launching import memory_limit
from berth.deployments.models import Revision
from berth.deployments.quotas import REGION_NOT_ALLOWED, allowed_regions, in_region, region_sentence
from berth.planner.anywhere import losses_of, read_demand, read_fixed, station_here, what_it_takes
from berth.planner.makeable import Maker, is_to_be_made, makeable
from berth.planner.market import Station
from berth.planner.needs import BadNeeds, Needs, Pins, read_needs, read_pins
from berth.planner.plan import plan
from berth.planner.quality import read_measured
from berth.planner.shapes import Plan, PlanArtefact
from berth.planner.tiers import Tier
from berth.web.errors import ApiError

_UNBOUNDED = 1 << 62  # bytes: more nodes come when replicas wait


class Room(msgspec.Struct, frozen=True):
    """Bytes on a tier: `usable` by all replicas together, as planned; `free` as measured now."""

    usable: int
    free: int


class Ground(msgspec.Struct, frozen=True):
    """What else counts about a tier when a replica is to be placed."""

    region: str | None = None
    devices: tuple[str, ...] = ()  # ids, where the provider leaves it to us which replica gets which


class NoPlan(ApiError):
    """Nothing fits. `params` has the whole plan: what was rejected and what would help."""

    status = 422

    def __init__(self, found: Plan) -> None:
        why = found.rejected[0].message if found.rejected else "There is no hardware to plan on."
        helps = " ".join(change.message for change in found.changes)
        super().__init__("no_plan", f"This cannot be deployed as asked. {why} {helps}".strip(), params=plan_json(found))


class Invalid(ApiError):
    status = 422

    def __init__(self, problem: BadNeeds) -> None:
        super().__init__("invalid", problem.message, field=problem.field)


def read_wishes(needs: Mapping[str, Any] | None, pins: Mapping[str, Any] | None) -> tuple[Needs, Pins]:
    """Raises Invalid."""
    try:
        return read_needs(needs), read_pins(pins)
    except BadNeeds as problem:
        raise Invalid(problem) from None


def tier_of(offer: Offer) -> Tier:
    return Tier(
        key=offer.key,
        kind=offer.kind.value,
        cores=offer.cores,
        memory_bytes=offer.memory_bytes,
        memory_bandwidth=offer.memory_bandwidth,
        price_per_hour=offer.price_per_hour,
        gpu=offer.gpu,
        gpus=offer.gpus,
    )


def tiers(provider: Provider, org_id: UUID) -> list[Tier]:
    """Those in regions that the organisation allows. Raises ApiError: 503 when the provider does not answer, 422 when all are elsewhere."""
    try:
        offers = provider.offers()
    except ProviderError as error:
        raise ApiError("provider_unavailable", f"Nothing can be planned just now: {error}", status=503) from None
    regions = allowed_regions(org_id)
    found = [tier_of(offer) for offer in offers if in_region(offer.region, regions)]
    if offers and not found:
        raise ApiError(REGION_NOT_ALLOWED, region_sentence(regions), status=422)
    return found


def make_plan(
    version: ModelVersion,
    needs: Needs,
    pins: Pins,
    replicas: int = 1,
    *,
    provider: Provider | None = None,
    barred: Mapping[str, str] | None = None,
) -> Plan:
    """What would run for these needs on what this installation has, and on what it can make. `barred`: quantizations that could not be
    made just now, with the reason of each."""
    return plan(
        model_facts(version.facts),
        plan_artefacts(version, barred or {}),
        needs,
        tiers(provider or default_provider(), version.org_id),
        pins,
        replicas=replicas,
        licence=version.licence,
        factors=factors(),
    )


def survey_anywhere(
    version: ModelVersion,
    demand: Mapping[str, Any] | None,
    pins: Mapping[str, Any] | None,
    *,
    provider: Provider | None = None,
) -> dict[str, Any]:
    """What it would take to serve a demand on any tier there is: those of this installation whose hardware the planner knows, and those
    that are not here. With the model's licence, what was measured of its artefacts, and what measured deployments teach. Raises Invalid."""
    artefacts = Artefact.objects.for_org(version.org_id).filter(version=version).order_by("id")
    try:
        asked, fixed = read_demand(demand), read_fixed(pins)
    except BadNeeds as problem:
        raise Invalid(problem) from None
    found = what_it_takes(
        model_facts(version.facts),
        asked,
        fixed,
        formats=[artefact.quantization for artefact in artefacts],
        here=stations_here(provider or default_provider()),
        losses=losses_of({artefact.quantization: read_measured(artefact.quality) for artefact in artefacts}),
        factors=factors(),
        licence=version.licence,
    )
    return found | {"currency": "USD"}


def stations_here(provider: Provider) -> list[Station]:
    """Offers with GPUs that the planner knows. None where the provider does not answer: the question is about all hardware."""
    try:
        offers = provider.offers()
    except ProviderError:
        return []
    found = (
        station_here(offer.key, offer.gpu, max(1, offer.gpus), offer.price_per_hour) for offer in offers if offer.gpu
    )
    return [station for station in found if station is not None]


def plan_artefacts(version: ModelVersion, barred: Mapping[str, str] = MappingProxyType({})) -> list[PlanArtefact]:
    """What could be loaded for a version, and what could be made of that: of an adapter what it was merged into, and its base's on
    engines that load it beside them."""
    rows = Artefact.objects.for_org(version.org_id)
    own = [plan_artefact(each) for each in rows.filter(version=version, adapter__isnull=True).order_by("id")]
    if version.base_id is None:
        known = {**barred, **refusals(version)}
        return own + makeable(model_facts(version.facts), own, known, maker=_maker())
    able = engines_of(version)
    of_base = [
        plan_artefact(each) for each in rows.filter(version=version.base_id, adapter__isnull=True).order_by("id")
    ]
    beside = [msgspec.structs.replace(e, engines=tuple(n for n in e.engines if n in able)) for e in of_base]
    return own + [each for each in beside if each.engines]


def _maker() -> Maker:
    """This machine, which stands for those that convert."""
    return Maker(converters_installed(), machine.memory(), max(1, machine.cores() - 1))


def plan_artefact(artefact: Artefact) -> PlanArtefact:
    return PlanArtefact(
        id=str(artefact.pk),
        format=artefact.format,
        engines=tuple(artefact.engines),
        size=artefact.size,
        facts=artefact_facts(artefact.facts),
        measured=read_measured(artefact.quality),
    )


def plan_json(found: Plan) -> dict[str, Any]:
    """In the API's shape."""
    plain: dict[str, Any] = msgspec.to_builtins(found, str_keys=True)
    for each in plain["rejected"]:
        each["artefact_id"] = None if is_to_be_made(each["artefact_id"]) else each["artefact_id"]
    choice = plain["choice"]
    if choice is not None:
        source, files, _ = choice["made_of"], choice.pop("artefact_id"), choice.pop("file_format")
        identity = {
            "id": None if source else files,
            "quantization": choice.pop("quantization"),
            "size": choice.pop("size"),
        }
        choice["artefact"] = identity
        choice["made_of"] = source or None
        choice["currency"] = settings.CURRENCY
    return plain


def wishes_json(wishes: Needs | Pins) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(wishes)
    return plain


def ground_on(offers: Sequence[Offer], revision: Revision) -> Ground:
    """Where the revision's tier is, and its devices."""
    for offer in offers:
        if offer.key == revision.tier:
            return Ground(offer.region, tuple(each.id for each in offer.devices))
    return Ground()


def room_on(offers: Sequence[Offer], revision: Revision) -> Room:
    """What the revision's tier has for replicas: by plan, and by what is really free beside the margin that a start asks for."""
    margin = memory_limit(revision.memory, revision.slots) - revision.memory
    for offer in offers:
        if offer.key == revision.tier:
            if offer.grows:
                return Room(usable=_UNBOUNDED, free=_UNBOUNDED)
            if offer.all_memory_bytes is not None and offer.all_free_memory_bytes is not None:
                return Room(usable=offer.all_memory_bytes, free=offer.all_free_memory_bytes - margin)
            return Room(usable=tier_of(offer).usable_memory, free=offer.free_memory_bytes - margin)
    return Room(usable=0, free=0)
