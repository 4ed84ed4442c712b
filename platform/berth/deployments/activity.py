"""When a deployment was last used, as gateways report and as was metered."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import cast
from uuid import UUID

import msgspec
from django.db.models import Q

from berth.deployments.models import Deployment
from berth.metering.models import UsageEvent
from berth.outbox.valkey import UNAVAILABLE, client
from berth_gateway.contract import GATEWAYS_KEY, LOAD_PREFIX, DeploymentLoad

_load = msgspec.msgpack.Decoder(DeploymentLoad)


def last_request_at(deployment: Deployment, now: datetime) -> float | None:
    """Unix seconds at which a request last arrived, waited or ran, for it or for an adapter beside it. None: never. `now` when it
    cannot be known: who does not know does not let it sleep."""
    rows = Deployment.objects.for_org(deployment.org_id).filter(Q(pk=deployment.pk) | Q(beside=deployment.pk))
    served = list(rows.values_list("pk", flat=True))
    try:
        seen = [load.active_at for each in served for load in loads_of(each)]
    except UNAVAILABLE:
        return now.timestamp()
    metered = (
        UsageEvent.objects.for_org(deployment.org_id)
        .filter(deployment_id__in=served)
        .order_by("-accepted_at")
        .values_list("accepted_at", "duration_ms")
        .first()
    )
    if metered is not None:
        seen.append(metered[0].timestamp() + metered[1] / 1000)
    return max(seen, default=None)


def loads_of(deployment_id: UUID) -> Iterator[DeploymentLoad]:
    """What each gateway that lives sees of it. Raises one of UNAVAILABLE."""
    names = cast("list[bytes]", client().hkeys(GATEWAYS_KEY))
    for name in names:
        packed = cast("bytes | None", client().hget(LOAD_PREFIX + name.decode(), str(deployment_id)))
        if packed is not None:
            try:
                yield _load.decode(packed)
            except msgspec.MsgspecError:
                continue  # of a gateway that speaks another version
