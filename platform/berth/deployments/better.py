"""Whether something better than what runs is known today. Nothing is changed for it: people are told, and take it or leave it."""

from __future__ import annotations

from typing import Any, Final

from django.utils import timezone

from berth.catalog.models import Artefact
from berth.compute.provider import Provider
from berth.deployments import plan_ids
from berth.deployments.adapters import check_still_fits
from berth.deployments.models import Deployment, Revision, Rollout, Status
from berth.deployments.planning import make_plan, plan_json, read_wishes
from berth.deployments.preparations import open_preparation
from berth.planner.explain import Reason
from berth.planner.shapes import Choice, Plan
from berth.web.errors import ApiError

_COMPARED: Final = ("engine", "artefact_id", "tier", "context_length", "slots")
_NOTHING: Final[dict[str, Any]] = {"better": False, "differences": [], "why": None, "plan": None, "plan_id": None}


def better_plan(deployment: Deployment, *, provider: Provider | None = None) -> dict[str, Any]:
    """As `BetterPlanOut` shows it: for the same needs, pins and replicas, what would be planned today, if that is another thing than what
    is wanted. Not what this deployment was rolled back from, nor what the adapters beside it could not live with. Raises ApiError (503)."""
    revision = deployment.revision
    if revision is None or deployment.beside_id is not None or open_preparation(deployment) is not None:
        return _NOTHING
    needs, pins = read_wishes(revision.needs, revision.plan.get("pins", {}))
    planned = make_plan(revision.version, needs, pins, revision.replicas, provider=provider)
    choice = planned.choice
    if choice is None or not differs(revision, planned) or not _welcome(deployment, choice):
        return _NOTHING
    why = what_speaks_against(revision, planned)
    return {
        "better": True,
        "differences": _differences(revision, choice),
        "why": {"code": why.code, "message": why.message, "params": why.params},
        "plan": plan_json(planned),
        "plan_id": plan_ids.issue(revision.version, needs, pins, planned, revision.replicas, timezone.now()),
    }


def differs(revision: Revision, planned: Plan) -> bool:
    """Whether the plan is for other files, another engine or other hardware, or for other settings of the same."""
    choice = planned.choice
    return choice is None or any(str(getattr(revision, name)) != str(getattr(choice, name)) for name in _COMPARED)


def named(planned: Plan) -> dict[str, Any]:
    """For the timeline."""
    choice = planned.choice
    return {} if choice is None else {"quantization": choice.quantization, "engine": choice.engine, "tier": choice.tier}


def what_speaks_against(revision: Revision, planned: Plan) -> Reason:
    """Why the plan does not choose what the revision has."""
    for each in planned.rejected:
        mine = (each.artefact_id, each.engine, each.tier) == (str(revision.artefact_id), revision.engine, revision.tier)
        if mine:
            return Reason(each.code, each.message, each.params)
    if planned.choice is not None and planned.choice.artefact_id == str(revision.artefact_id):
        return Reason("other_settings", "The same files fit with other settings.", {})
    return Reason("not_offered", "Its files, engine or hardware are not on offer any more.", {})


def _differences(revision: Revision, choice: Choice) -> list[dict[str, Any]]:
    pairs: list[tuple[str, Any, Any]] = [("quantization", revision.artefact.quantization, choice.quantization)]
    pairs += [(name, getattr(revision, name), getattr(choice, name)) for name in _COMPARED if name != "artefact_id"]
    price = (revision.plan.get("choice") or {}).get("price_per_hour")
    pairs.append(("price_per_hour", price, None if choice.price_per_hour is None else str(choice.price_per_hour)))
    return [{"field": name, "before": before, "after": after} for name, before, after in pairs if before != after]


def _welcome(deployment: Deployment, choice: Choice) -> bool:
    if choice.made_of:
        return True
    gone_back = Rollout.objects.for_org(deployment.org_id).filter(deployment=deployment, status=Status.ROLLED_BACK)
    same = {f"revision__{name}": getattr(choice, name) for name in _COMPARED if name != "artefact_id"}
    if gone_back.filter(revision__artefact_id=choice.artefact_id, **same).exists():
        return False
    try:
        check_still_fits(
            deployment, Artefact.objects.for_org(deployment.org_id).get(pk=choice.artefact_id), choice.engine
        )
    except ApiError:
        return False
    return True
