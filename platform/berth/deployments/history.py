"""Events of deployments: a row for the timeline, and word of it to open pages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from berth.deployments.models import Deployment, Event
from berth.orgs.models import User
from berth.web.events import publish_event

TOPIC = "deployments"


def record(deployment: Deployment, kind: str, now: datetime, *, actor: User | None = None, **data: Any) -> None:
    """In the transaction of the change itself. `data` holds codes, names and numbers."""
    Event.objects.for_org(deployment.org_id).create(
        org_id=deployment.org_id, deployment=deployment, kind=kind, data=data, actor=actor
    )
    tell(deployment, kind, now, **data)


def tell(deployment: Deployment, kind: str, now: datetime, **data: Any) -> None:
    """To open pages only. The version is the instant in milliseconds: one writer at a time makes it rise."""
    publish_event(
        deployment.org_id,
        TOPIC,
        deployment.name,
        int(now.timestamp() * 1000),
        {"kind": kind, "id": str(deployment.pk), "state": deployment.state, **data},
    )
