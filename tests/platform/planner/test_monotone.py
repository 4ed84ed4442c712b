"""More demanding needs never get cheaper, whichever need it is. docs/planner.md says what is compared where people wait for answers.

The price that is compared is the plan's: US dollars an hour for everything that is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from berth.planner.catalogue import model_by_name
from berth.planner.demand import Demand
from berth.planner.market import stations
from berth.planner.survey import Survey, survey

SMALL = tuple(
    each for each in stations() if each.key in ("cpu-48", "t4", "l4", "a10g", "rtx-4090", "h100", "mi300x", "b200")
)
KEYS = tuple(station.key for station in SMALL)
MODELS = (
    "llama-3.1-8b", "llama-2-7b", "qwen2.5-0.5b", "qwen2.5-72b", "mixtral-8x7b", "gemma-3-27b", "deepseek-v3", "gpt-oss-120b", "phi-2",
)  # fmt: skip
ENGINES = ("vllm", "llamacpp", "tensorrt_llm", "ollama", "onnxruntime")
FEATURES = ("lora", "tools", "json_schema", "vision", "prefix_cache")
REGIONS = ("us-east", "eu-west", "global")
LICENCE = "Apache-2.0"

loads = st.one_of(
    st.builds(lambda users, think: {"users": users, "think_seconds": think}, st.integers(1, 3_000), st.floats(0, 120)),
    st.builds(lambda rate: {"requests_per_second": rate}, st.floats(0.001, 60)),
    st.builds(lambda streams: {"streams": streams}, st.integers(1, 600)),
)
wishes = st.fixed_dictionaries(
    {
        "prompt_tokens": st.integers(1, 6_000),
        "reply_tokens": st.integers(1, 1_500),
        "ttft_ms": st.none() | st.floats(50, 5_000),
        "ttft_quantile": st.sampled_from([0.5, 0.9, 0.95, 0.99]),
        "tokens_per_second": st.none() | st.floats(1, 150),
        "reply_seconds": st.none() | st.floats(1, 120),
        "context_length": st.none() | st.integers(8_000, 40_000),
        "most_loss": st.none() | st.floats(0, 0.2),
        "quality": st.sampled_from(["best", "balanced", "economy"]),
        "cached_share": st.sampled_from([0.0, 0.3, 0.9]),
        "most_replicas": st.integers(1, 64),
        "spare_replicas": st.integers(0, 2),
        "availability": st.none() | st.sampled_from([0.9, 0.99, 0.9999]),
    }
)
demands = st.builds(lambda load, rest: Demand(**load, **rest), loads, wishes)

Harder = Callable[[Demand, float], dict[str, Any]]
# Each takes a demand and a factor of at least 1.
HARDER: dict[str, Harder] = {
    "more people": lambda d, k: {"users": int((d.users or 1) * k) + 1},
    "less time to think": lambda d, k: {"think_seconds": d.think_seconds / k},
    "more requests": lambda d, k: {"requests_per_second": d.requests_per_second * k} if d.requests_per_second else {},
    "more streams": lambda d, k: {"streams": int(d.streams * k) + 1} if d.streams else {},
    "longer prompts": lambda d, k: {"prompt_tokens": int(d.prompt_tokens * k) + 1},
    "longer replies": lambda d, k: {} if d.clients else {"reply_tokens": int(d.reply_tokens * k) + 1},
    "an earlier first token": lambda d, k: {"ttft_ms": (d.ttft_ms or 10_000) / k},
    "more first tokens in time": lambda d, k: {"ttft_quantile": 1 - (1 - d.ttft_quantile) / k},
    "faster": lambda d, k: {"tokens_per_second": (d.tokens_per_second or 0.5) * k},
    "a whole reply sooner": lambda d, k: {"reply_seconds": (d.reply_seconds or 500) / k},
    "more context": lambda d, k: {"context_length": int(d.context(1 << 20) * k) + 1},
    "less loss": lambda d, k: {"most_loss": d.loss / k},
    "less from the prefix cache": lambda d, k: {"cached_share": d.cached_share / k},
    "fewer replicas": lambda d, k: {"most_replicas": max(1, int(d.most_replicas / k))},
    "more spare ones": lambda d, k: {"spare_replicas": d.spare_replicas + int(k)},
    "more of the time": lambda d, k: {"availability": 1 - (1 - (d.availability or 0.5)) / k},
}  # fmt: skip
ALL = tuple(HARDER)


def planned(name: str, demand: Demand, **more: Any) -> Survey:
    model = model_by_name(name)
    assert model is not None
    return survey(model, demand, market=SMALL, licence=LICENCE, **more)


def never_cheaper(before: Survey, after: Survey) -> None:
    if after.chosen is None:
        return
    assert before.chosen is not None, f"only the harder demand can be met: {after.chosen.option.label}"
    assert before.chosen.per_hour is not None
    assert after.chosen.per_hour is not None
    assert after.chosen.per_hour >= before.chosen.per_hour, (before.chosen.option.label, after.chosen.option.label)


def changed(demand: Demand, names: tuple[str, ...], factor: float) -> Demand:
    for name in names:
        demand = msgspec.structs.replace(demand, **HARDER[name](demand, factor))
    return demand


@pytest.mark.parametrize("name", ALL)
@given(model=st.sampled_from(MODELS), demand=demands, factor=st.floats(1, 4))
@settings(max_examples=4, deadline=None)
def test_one_harder_need_never_gets_cheaper(name: str, model: str, demand: Demand, factor: float) -> None:
    never_cheaper(planned(model, demand), planned(model, changed(demand, (name,), factor)))


@given(
    model=st.sampled_from(MODELS),
    demand=demands,
    names=st.lists(st.sampled_from(ALL), min_size=2, max_size=6, unique=True).map(tuple),
    factor=st.floats(1, 2),
)
@example(
    model="mistral-7b",
    demand=Demand(requests_per_second=4.0, prompt_tokens=3_000, reply_tokens=1),
    names=("longer replies",),
    factor=1.0,
)
@settings(max_examples=20, deadline=None)
def test_harder_needs_together_never_get_cheaper(
    model: str, demand: Demand, names: tuple[str, ...], factor: float
) -> None:
    never_cheaper(planned(model, demand), planned(model, changed(demand, names, factor)))


@given(
    model=st.sampled_from(MODELS),
    demand=demands,
    allowed=st.fixed_dictionaries(
        {
            "engines": st.sets(st.sampled_from(ENGINES), min_size=2),
            "tiers": st.sets(st.sampled_from(KEYS), min_size=2),
            "regions": st.sets(st.sampled_from(REGIONS), min_size=2),
            "licences": st.sets(st.sampled_from(["MIT", LICENCE, "CC-BY-4.0"]), min_size=2),
        }
    ),
    field=st.sampled_from(["engines", "tiers", "regions", "licences"]),
    data=st.data(),
)
@settings(max_examples=8, deadline=None)
def test_allowing_less_never_gets_cheaper(
    model: str, demand: Demand, allowed: dict[str, set[str]], field: str, data: Any
) -> None:
    some = tuple(sorted(allowed[field]))
    fewer = data.draw(st.sets(st.sampled_from(some), min_size=1))
    anything, wide, narrow = (
        msgspec.structs.replace(demand, **{field: value}) for value in ((), some, tuple(sorted(fewer)))
    )
    never_cheaper(planned(model, anything), planned(model, wide))
    never_cheaper(planned(model, wide), planned(model, narrow))


@given(model=st.sampled_from(MODELS), demand=demands, some=st.sets(st.sampled_from(FEATURES)), data=st.data())
@settings(max_examples=4, deadline=None)
def test_asking_for_more_features_never_gets_cheaper(model: str, demand: Demand, some: set[str], data: Any) -> None:
    more = some | data.draw(st.sets(st.sampled_from(FEATURES)))
    few, many = (msgspec.structs.replace(demand, features=tuple(sorted(each))) for each in (some, more))
    never_cheaper(planned(model, few), planned(model, many))


@given(
    model=st.sampled_from(MODELS),
    demand=demands,
    field=st.sampled_from(["most_per_hour", "most_per_interaction"]),
    ceiling=st.decimals(Decimal("0.000001"), Decimal(40), places=6),
    factor=st.integers(1, 10),
)
@settings(max_examples=8, deadline=None)
def test_a_lower_ceiling_never_gets_cheaper_and_a_higher_one_never_dearer(
    model: str, demand: Demand, field: str, ceiling: Decimal, factor: int
) -> None:
    """Where the lower ceiling can be met, the higher one changes nothing: the cheapest was cheap enough already."""
    high = planned(model, msgspec.structs.replace(demand, **{field: ceiling}))
    low = planned(model, msgspec.structs.replace(demand, **{field: ceiling / factor}))
    never_cheaper(high, low)
    if low.chosen is not None and field == "most_per_hour":
        assert high.chosen is not None
        assert high.chosen.per_hour == low.chosen.per_hour


def test_a_licence_that_is_not_allowed_is_told_for_every_option() -> None:
    found = planned("llama-3.1-8b", Demand(users=5, licences=("MIT",)))
    assert found.chosen is None
    assert {each.why.code for each in found.turned} == {"licence_not_allowed"}
    assert planned("llama-3.1-8b", Demand(users=5, licences=("apache-2.0",))).chosen is not None


def test_more_availability_takes_spare_replicas() -> None:
    usual, sure = (planned("llama-3.1-8b", Demand(users=5, availability=share)).chosen for share in (None, 0.9999))
    assert usual is not None
    assert sure is not None
    assert (usual.spare, sure.spare) == (0, 1)  # two that are there 99 % of the time each: one is 99.99 %
    assert sure.replicas == usual.replicas + 1
