"""What somebody could deploy, and what it would take elsewhere. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils import timezone

from berth.catalog.models import ModelVersion
from berth.compute.provider import Provider
from berth.deployments import plan_ids
from berth.deployments.adapters import chosen_base, files_of, plan_beside
from berth.deployments.planning import make_plan, plan_json, read_wishes, survey_anywhere
from berth.orgs.models import Organisation
from berth.planner.needs import MAX_REPLICAS
from berth.planner.shapes import Plan
from berth.web.errors import ApiError, NotFound

Wishes = Mapping[str, Any]


def plan_for(
    org: Organisation,
    *,
    model: str | None = None,
    version: ModelVersion | int | None = None,
    needs: Wishes | None = None,
    pins: Wishes | None = None,
    replicas: int = 1,
    provider: Provider | None = None,
) -> Plan:
    """What `deploy` would run, with its reasons. Changes nothing. `version` None: the model's newest."""
    wanted, fixed = read_wishes(needs, pins)
    return make_plan(find_version(org, model, version), wanted, fixed, replica_count(replicas), provider=provider)


def propose(
    org: Organisation,
    *,
    model: str,
    version: int | None = None,
    needs: Wishes | None = None,
    pins: Wishes | None = None,
    replicas: int = 1,
    beside: str | None = None,
    provider: Provider | None = None,
) -> dict[str, Any]:
    """The plan in the API's shape, with the id by which `deploy` knows what was seen; null when nothing fits. Of an adapter that would
    be served by another deployment's replicas: that one's plan, and its name. Changes nothing."""
    wanted, fixed = read_wishes(needs, pins)
    found = find_version(org, model, version)
    base = chosen_base(found, beside, pinned=bool(pins))
    files = files_of(found, base.revision.engine) if base is not None and base.revision is not None else None
    if base is not None and files is not None:
        return plan_beside(base, files) | {"plan_id": None, "beside": base.name}
    planned = make_plan(found, wanted, fixed, replica_count(replicas), provider=provider)
    plan_id = plan_ids.issue(found, wanted, fixed, planned, replicas, timezone.now())
    return plan_json(planned) | {"plan_id": plan_id, "beside": None}


def plan_anywhere(
    org: Organisation,
    *,
    model: str,
    version: int | None = None,
    demand: Wishes | None = None,
    pins: Wishes | None = None,
) -> dict[str, Any]:
    """What it would take to serve people's demand on any tier there is. Changes nothing."""
    return survey_anywhere(find_version(org, model, version), demand, pins)


def find_version(org: Organisation, model: str | None, version: ModelVersion | int | None) -> ModelVersion:
    """One that is there: of what was deleted only history is left. Raises NotFound."""
    rows = ModelVersion.objects.for_org(org).filter(deleted_at=None).select_related("model")
    if isinstance(version, ModelVersion):
        rows = rows.filter(pk=version.pk)
    else:
        rows = rows.filter(model__name=model or "")
        if version is not None:
            rows = rows.filter(number=version)
    found = rows.order_by("-number").first()
    if found is None:
        raise NotFound("model version" if version is not None else "model")
    return found


def replica_count(count: int) -> int:
    if not 1 <= count <= MAX_REPLICAS:
        raise ApiError("invalid", f"Ask for 1 to {MAX_REPLICAS} replicas.", field="replicas", status=422)
    return count
