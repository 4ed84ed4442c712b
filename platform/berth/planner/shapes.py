"""The shapes of planning: what is asked, what is weighed, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import msgspec

from berth.catalog.facts import ArtefactFacts, ModelFacts
from berth.planner.explain import Reason
from berth.planner.learning import Factor, Key
from berth.planner.memory import MemoryNeed
from berth.planner.needs import Needs, Pins
from berth.planner.performance import Estimate
from berth.planner.quality import MeasuredQuality
from berth.planner.tiers import Tier

PLAN_FORMAT: Final = 1


class PlanArtefact(msgspec.Struct, frozen=True):
    """A file set that could be loaded."""

    id: str
    format: str
    engines: tuple[str, ...]
    size: int  # bytes on disk
    facts: ArtefactFacts
    measured: MeasuredQuality | None = None  # by a conversion; None: only its bits are known
    made_of: str = ""  # id of the artefact that it would be made of; empty: it is there (`makeable`)
    barred: Reason | None = None  # why it cannot be made, or was made and is no good; None: it can
    seconds: float = 0.0  # that making and measuring it is likely to take


class Predicted(msgspec.Struct, frozen=True):
    tokens_per_second: Estimate | None  # for each concurrent request
    ttft_ms: Estimate | None = None  # one request alone, a prompt of 512 tokens


class Layout(msgspec.Struct, frozen=True):
    """How a replica lies on its devices, and what its engine is told beside context and slots. None: the engine's own."""

    devices: int = 0  # GPUs that are the replica's alone
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    kv_dtype: str | None = None  # of the cache, in the engine's words; None: as the weights
    memory_fraction: float | None = None  # of each GPU's memory, as the plan counted
    max_batched_tokens: int | None = None  # of one step, as the plan counted
    kv_cache_bytes: int | None = None  # for engines that set it aside at once
    main_memory: int | None = None  # bytes beside the GPUs'; None: what `memory` says is main memory


class Choice(msgspec.Struct, frozen=True):
    """Everything that a revision needs."""

    engine: str
    artefact_id: str
    quantization: str
    size: int
    tier: str
    context_length: int
    slots: int
    threads: int
    replicas: int
    memory: MemoryNeed  # for one replica
    predicted: Predicted
    price_per_hour: Decimal | None  # for all replicas
    reasons: tuple[Reason, ...]
    layout: Layout = Layout()
    made_of: str = ""  # id of the artefact that its files are made of first; empty: they are there
    file_format: str = ""


class Rejected(msgspec.Struct, frozen=True):
    engine: str
    artefact_id: str
    quantization: str
    tier: str
    code: str
    message: str
    params: dict[str, object]


class Plan(msgspec.Struct, frozen=True):
    format: int
    fits: bool
    choice: Choice | None
    rejected: tuple[Rejected, ...]
    changes: tuple[Reason, ...]  # each alone would make it fit; only when nothing does


class Question(msgspec.Struct, frozen=True):
    """All that a plan depends on."""

    model: ModelFacts
    artefacts: tuple[PlanArtefact, ...]
    needs: Needs
    tiers: tuple[Tier, ...]
    pins: Pins
    replicas: int = 1
    licence: str = ""  # of the model's version; empty: not told
    factors: Mapping[Key, Factor] = msgspec.field(default_factory=dict)  # what measured deployments taught


class Candidate(msgspec.Struct, frozen=True):
    artefact: PlanArtefact
    engine: str
    tier: Tier

    @property
    def order(self) -> tuple[str, str, str]:
        return (self.tier.key, self.artefact.id, self.engine)


class Fit(msgspec.Struct, frozen=True):
    """A candidate that meets everything, with the settings under which it does."""

    candidate: Candidate
    context_length: int
    slots: int
    memory: MemoryNeed
    speed: Estimate | None
    bits: float
    loss: float  # of a benchmark's score, 0 to 1: measured of this artefact, or as usual for its bits
    first: Estimate | None = None
    layout: Layout = Layout()
