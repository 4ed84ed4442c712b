"""What this room asks of rooms above it, without knowing them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

# (organisation id, wanted ids) -> those of them that are deployments of that organisation
DeploymentLookup = Callable[[UUID, Collection[UUID]], set[UUID]]

_lookups: list[DeploymentLookup] = []


def register_deployment_lookup(lookup: DeploymentLookup) -> None:
    """Called once, in the `AppConfig.ready` of whoever has deployments."""
    _lookups[:] = [lookup]


def known_deployments(org_id: UUID, wanted: Collection[UUID]) -> set[UUID]:
    """Foreign and unknown ids are both left out. Without a registered lookup nothing is known."""
    return _lookups[0](org_id, wanted) if _lookups else set()
