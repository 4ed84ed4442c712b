"""Whether a model's licence is among those that are allowed."""

from __future__ import annotations

from collections.abc import Sequence

from berth.planner.explain import Reason, reason


def allowed(licence: str, among: Sequence[str]) -> Reason | None:
    """None: it may run. A model whose licence is not known (empty) may not, once any is named."""
    if not among or licence.casefold() in {each.casefold() for each in among}:
        return None
    told = ", ".join(among)
    if not licence:
        return reason("licence_unknown", f"The model's licence is not known here; allowed are {told}.", allowed=told)
    return reason(
        "licence_not_allowed",
        f"The model's licence is {licence}; allowed are {told}.",
        licence=licence,
        allowed=told,
    )
