"""What can be changed about a deployment without a new revision: it holds at once and restarts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from berth.deployments.models import Deployment
from berth.deployments.replicas import check_bounds

SLEEP: Final = ("sleep_after_seconds", "hold_seconds")
BOUNDS: Final = ("min_replicas", "max_replicas")
FIELDS: Final = (*SLEEP, *BOUNDS, "priority")
EVENTS: Final = {"sleep_changed": SLEEP, "bounds_changed": BOUNDS, "priority_changed": ("priority",)}


def set_fields(deployment: Deployment, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of the locked row; saves it. Returns the kinds of events that tell of it, each with what holds now. Raises ApiError."""
    for name, value in values.items():
        setattr(deployment, name, value)
    if values.keys() & set(BOUNDS):
        check_bounds(deployment.min_replicas, deployment.max_replicas)
        if deployment.min_replicas is None and deployment.max_replicas is None:
            deployment.desired_replicas = None
            deployment.replica_limit = deployment.replica_limit_revision = None
    kept = ("desired_replicas", "replica_limit", "replica_limit_revision")
    deployment.save(update_fields=[*values, *kept])
    return {
        kind: {name: getattr(deployment, name) for name in names}
        for kind, names in EVENTS.items()
        if values.keys() & set(names)
    }
