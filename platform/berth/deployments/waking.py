"""What gateways ask for: deployments that sleep and for which a request waits."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import cast
from uuid import UUID

import msgspec

from berth.deployments import services
from berth.deployments.models import Deployment
from berth.outbox.valkey import client
from berth_gateway.contract import WAKE_STREAM, Wake

log = logging.getLogger(__name__)

_TOGETHER = 100
_wake = msgspec.msgpack.Decoder(Wake)


def wake_those_asked_for() -> list[UUID]:
    """Works the stream off; returns what was woken. A message is removed after its deployment was woken, so that none is lost; one that
    comes twice, or after the sleep that it is about, changes nothing. Raises one of UNAVAILABLE."""
    woken = []
    while entries := cast("list[tuple[bytes, dict[bytes, bytes]]]", client().xrange(WAKE_STREAM, count=_TOGETHER)):
        for entry, fields in entries:
            deployment = _asked_for(fields.get(b"wake", b""))
            if deployment is not None and services.wake(deployment, None):
                woken.append(deployment.pk)
            client().xdel(WAKE_STREAM, entry)
    return woken


def _asked_for(packed: bytes) -> Deployment | None:
    try:
        asked = _wake.decode(packed)
        deployment_id = UUID(asked.deployment_id)
    except (msgspec.MsgspecError, ValueError):
        log.warning("wake_unreadable")
        return None
    found = Deployment.objects.across_orgs("gateways wake the deployments of all organisations").filter(
        pk=deployment_id
    )
    deployment = found.select_related("beside").first()
    if deployment is None:
        return None
    sleeper = deployment.beside or deployment  # an adapter sleeps as its base does
    return sleeper if sleep_of(sleeper) == asked.sleep else None


def sleep_of(deployment: Deployment) -> int:
    """Unix milliseconds at which its state began: tells one sleep from the next."""
    return (deployment.state_since - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
