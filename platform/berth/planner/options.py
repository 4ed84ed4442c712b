"""Everything that could be tried: engine x weight format x tier x number of devices, with the parallelism that divides."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache

import msgspec

from berth.catalog.facts import ModelFacts
from berth.planner.capability import Capability, capabilities, dividing, unsupported
from berth.planner.coefficients import coefficients
from berth.planner.explain import Reason, reason
from berth.planner.market import Station
from berth.planner.placement import Placement
from berth.planner.quantization import Scheme, scheme
from berth.planner.weights import weights

Order = tuple[str, int, str, str, int, bool]


class Option(msgspec.Struct, frozen=True):
    engine: str
    scheme: str
    station: Station
    devices: int  # of one replica
    kv_bits: int = 16
    made: bool = True  # by a conversion or quantization; else the files are there
    spread: bool = (
        False  # attention is whole on each device, which has a share of the requests; experts are spread over all
    )

    @property
    def least(self) -> Decimal | None:
        """US dollars an hour of one replica."""
        return None if self.station.price is None else self.station.price * self.devices

    @property
    def order(self) -> Order:
        return (self.station.key, self.devices, self.engine, self.scheme, self.kv_bits, self.spread)

    @property
    def label(self) -> str:
        cache = ", 8-bit cache" if self.kv_bits == 8 else ""
        spread = ", data-parallel attention" if self.spread else ""
        return f"{self.scheme} on {self.engine}, {self.devices} x {self.station.key}{cache}{spread}"


@lru_cache(maxsize=64)
def options(stations: tuple[Station, ...], existing: frozenset[str] = frozenset()) -> tuple[Option, ...]:
    """Cheapest devices first, what has no price last. `existing`: the formats that the model is there in; others would have to be
    made, which some cannot be here."""
    found = [
        Option(capability.engine, name, station, devices, made=name not in existing)
        for station in stations
        for devices in station.counts
        for capability in capabilities().values()
        for name in capability.schemes
        if name in existing or name not in capability.existing_only
    ]
    return tuple(sorted(found, key=lambda option: (option.least is None, option.least or Decimal(0), option.order)))


@lru_cache(maxsize=256)
def scheme_for(engine: str, name: str, native: str) -> Scheme:
    found = scheme(name, engine=engine, native=native)
    if found is None:
        raise KeyError(name)
    return found


def place(option: Option, model: ModelFacts) -> Placement | Reason:
    """The placement of an option, or the first reason why it cannot be."""
    capability = capabilities()[option.engine]
    gpu, devices = option.station.gpu, option.devices
    against = unsupported(capability, option.scheme, gpu, model, option.kv_bits)
    if against is not None:
        return against
    if option.scheme == "MXFP4" and model.native_quantization != "mxfp4":
        return reason(
            "format_unsupported", "MXFP4 is planned only for models that were published in it.", format="MXFP4"
        )
    if model.recurrent and not model.state_bytes:
        return reason(
            "memory_unknown",
            f"How much state {model.architecture} keeps is not known, so its memory cannot be promised.",
            architecture=model.architecture,
        )
    shards = stages = split = 1
    if devices > 1:
        found = (devices, 1, 1) if option.spread else _parallel(capability, model, devices)
        if isinstance(found, Reason):
            return found
        shards, stages, split = found
    chosen = scheme_for(option.engine, option.scheme, model.native_quantization)
    return Placement(
        model=model, scheme=chosen, held=weights(model, chosen), engine=option.engine, coefficients=coefficients(option.engine), gpu=gpu,
        tensor_parallel=shards, pipeline_parallel=stages, kv_bits=option.kv_bits, split_layers=split,
        attention_replicas=devices if option.spread else 1,
    )  # fmt: skip


def _parallel(capability: Capability, model: ModelFacts, devices: int) -> tuple[int, int, int] | Reason:
    """(tensor, pipeline, layer split). The widest tensor parallelism that divides; what is left over becomes stages."""
    if capability.layer_split:
        return (1, 1, devices)
    if not capability.tensor_parallel:
        return reason("one_device", f"{capability.engine} uses one device.", engine=capability.engine, devices=devices)
    shards = devices
    first = dividing(model, shards)
    while shards > 1 and dividing(model, shards) is not None:
        shards //= 2
    if shards == devices:
        return (shards, 1, 1)
    stages = devices // shards
    if capability.pipeline_parallel and shards * stages == devices and stages <= model.layers:
        return (shards, stages, 1)
    return first or reason("heads_not_divisible", f"The model cannot be split over {devices} devices.", devices=devices)
