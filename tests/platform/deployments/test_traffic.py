"""How requests are split between revisions, as publishing reads it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from berth.deployments.traffic import Split, split


def of(traffic: dict[str, object], *revisions: int) -> Split[int]:
    return split(traffic, revisions, lambda revision: revision)


def test_without_a_rollout_all_serve_alike() -> None:
    assert of({}, 1, 1, 2) == Split((1, 1, 2))


def test_a_canary_gets_its_share_and_the_others_the_rest() -> None:
    assert of({"new": [3], "weight": 5}, 1, 1, 3) == Split((1, 1, 3), weights=((3, 500), (1, 9500)))
    # Revisions 1 and 2 differ in the number of replicas only.
    assert of({"new": [3], "weight": 40}, 1, 2, 2, 3).weights == ((3, 4000), (1, 2000), (2, 4000))


def test_who_is_alone_takes_everything() -> None:
    assert of({"new": [3], "weight": 5}, 3) == Split((3,))
    assert of({"new": [3], "weight": 0}, 3) == Split((3,))
    assert of({"new": [3], "weight": 5}, 1) == Split((1,))


def test_a_shadow_never_serves() -> None:
    assert of({"new": [3], "shadow": 10}, 1, 3) == Split((1,), shadow=(3,), percent=10)
    assert of({"new": [3], "shadow": 10}, 3) == Split((), shadow=(3,), percent=10)


@given(
    ready=st.lists(st.integers(1, 4), max_size=8),
    new=st.sets(st.integers(1, 4)),
    weight=st.integers(0, 100),
)
@settings(deadline=None)
def test_weights_name_only_who_is_there_and_sum_to_the_whole(ready: list[int], new: set[int], weight: int) -> None:
    found = of({"new": sorted(new), "weight": weight}, *ready)
    assert found.serving == tuple(ready)
    if found.weights:
        assert {revision for revision, _ in found.weights} == set(ready)
        assert 9990 <= sum(share for _, share in found.weights) <= 10_000
        assert abs(sum(share for revision, share in found.weights if revision in new) - weight * 100) <= 4
