"""What this room asks of rooms above it, without knowing them: which deployments use a model."""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

# (organisation id, model ids) -> names of the deployments of each
UseLookup = Callable[[UUID, Collection[UUID]], dict[UUID, list[str]]]

_lookups: list[UseLookup] = []


def register_use_lookup(lookup: UseLookup) -> None:
    """Called once, in the `AppConfig.ready` of whoever uses models."""
    _lookups[:] = [lookup]


def uses_of(org_id: UUID, models: Collection[UUID]) -> dict[UUID, list[str]]:
    return _lookups[0](org_id, models) if _lookups else {}
