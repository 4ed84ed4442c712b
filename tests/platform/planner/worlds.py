"""Models, tiers and needs of every size, for property tests."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import strategies as st

from berth.catalog.facts import ArtefactFacts, AttentionGroup, ModelFacts
from berth.planner.needs import Needs, Pins, Quality
from berth.planner.shapes import PlanArtefact
from berth.planner.tiers import Tier

GIB = 1 << 30

SMOLLM2 = ModelFacts(
    format=1, architecture="llama", name="SmolLM2 135M", parameters=134_515_008, active_parameters=134_515_008, layers=30,
    embedding_length=576, feed_forward_length=1536, heads=9, context_length=8192, vocabulary=49152,
    attention=(AttentionGroup(30, 3, 64, 64),), sliding_window=None, recurrent=False, has_chat_template=True,
)  # fmt: skip
Q4_1 = ArtefactFacts(1, "Q4_1", 272, 96_576_768, 96_576_768, 32)
CPU = Tier("cpu-local", "cpu", 2, 8 * GIB, 10 * GIB)


def artefact(
    key: str = "a", quantization: str = "Q4_1", size: int = Q4_1.tensor_bytes, **fields: object
) -> PlanArtefact:
    facts = ArtefactFacts(1, quantization, 272, size, size, 32)
    values = {"id": key, "format": "gguf", "engines": ("llamacpp",), "size": size, "facts": facts}
    return PlanArtefact(**values | fields)  # type: ignore[arg-type]


models = st.builds(
    ModelFacts,
    format=st.just(1),
    architecture=st.just("llama"),
    name=st.none(),
    parameters=st.integers(10_000_000, 100_000_000_000),
    active_parameters=st.integers(10_000_000, 30_000_000_000),
    layers=st.integers(1, 120),
    embedding_length=st.integers(64, 16_384),
    feed_forward_length=st.integers(64, 65_536),
    heads=st.integers(1, 128),
    context_length=st.integers(512, 1 << 20),
    vocabulary=st.integers(1_000, 300_000),
    attention=st.lists(
        st.builds(
            AttentionGroup,
            layers=st.integers(1, 60),
            kv_heads=st.integers(1, 64),
            key_length=st.integers(16, 512),
            value_length=st.integers(16, 512),
            window=st.none() | st.integers(128, 8192),
        ),
        max_size=3,
    ).map(tuple),
    sliding_window=st.none(),
    recurrent=st.booleans(),
    has_chat_template=st.booleans(),
)
artefacts = st.lists(
    st.builds(
        artefact,
        key=st.sampled_from(["a", "b", "c", "d"]),
        quantization=st.sampled_from(["Q4_1", "Q8_0", "F16"]),
        size=st.integers(1_000_000, 60 * GIB),
        engines=st.sampled_from([("llamacpp",), ("other",), ("llamacpp", "other")]),
        format=st.sampled_from(["gguf", "gguf", "safetensors"]),
    ),
    max_size=4,
    unique_by=lambda each: each.id,
)
prices = st.none() | st.decimals(Decimal(0), Decimal(10), places=4)
tiers = st.lists(
    st.builds(
        Tier,
        key=st.sampled_from(["cpu-local", "cpu-large", "gpu"]),
        kind=st.sampled_from(["cpu", "cpu", "gpu"]),
        cores=st.integers(1, 128),
        memory_bytes=st.integers(GIB // 4, 256 * GIB),
        memory_bandwidth=st.none() | st.integers(GIB, 400 * GIB),
        price_per_hour=prices,
    ),
    max_size=3,
    unique_by=lambda tier: tier.key,
)
needs = st.builds(
    Needs,
    context_length=st.none() | st.integers(256, 1 << 20),
    concurrency=st.integers(1, 300),
    quality=st.sampled_from(Quality),
    max_price_per_hour=prices,
    tokens_per_second=st.none() | st.floats(0.5, 500),
    ttft_ms=st.none() | st.floats(1, 1e6),
)
pins = st.builds(
    Pins,
    artefact_id=st.none() | st.sampled_from(["a", "b"]),
    engine=st.none() | st.sampled_from(["llamacpp", "other"]),
    tier=st.none() | st.sampled_from(["cpu-local", "gpu"]),
    context_length=st.none() | st.integers(256, 1 << 17),
    slots=st.none() | st.integers(1, 64),
)
