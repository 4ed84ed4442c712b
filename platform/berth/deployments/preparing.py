"""From a plan whose files are not there yet to a revision that runs: convert, measure, plan again with what was measured.

Nothing is remembered between two looks but rows, so any worker can take any of them. A deployment that runs goes on with the revision
that it has until the files of the next are there. What does not come out well is passed over for the next in the plan's order.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction

from berth.catalog.conversion.models import ConversionState
from berth.catalog.conversion.unasked import start_for
from berth.catalog.models import Artefact, ModelVersion
from berth.compute.provider import Provider
from berth.deployments import lease
from berth.deployments.decision import IDLE, NEVER, Decision
from berth.deployments.history import record
from berth.deployments.models import Deployment, Desired
from berth.deployments.planning import make_plan, plan_json, read_wishes, wishes_json
from berth.deployments.preparation import Preparation, Prepared
from berth.deployments.preparations import (
    begun_for_a_deployment,
    end,
    is_placeholder,
    latest_preparation,
    open_preparation,
    sentence_of,
    supersede,
)
from berth.deployments.proposals import Wishes
from berth.deployments.revising import revise
from berth.deployments.revisions import next_revision
from berth.deployments.states import State
from berth.deployments.writing import write_state
from berth.orgs.models import User
from berth.planner.makeable import is_to_be_made
from berth.planner.needs import Needs, Pins
from berth.planner.shapes import Choice, Plan
from berth.web.errors import ApiError

POLL: Final = timedelta(seconds=1)
PREPARING: Final = "preparing"
NONE_LEFT: Final = "no_quantization"
STOPPED: Final = "conversion_cancelled"


def begin(
    deployment: Deployment,
    actor: User | None,
    version: ModelVersion,
    needs: Needs,
    pins: Pins,
    planned: Plan,
    now: datetime,
    rollout: Wishes | None = None,
    reason: str = "",
) -> None:
    """In the caller's transaction. A deployment that has no revision yet gets one that says what is planned and never runs."""
    choice = planned.choice
    if choice is None:
        raise ValueError("nothing to prepare")
    supersede(deployment, now)
    Preparation.objects.for_org(deployment.org_id).create(
        org_id=deployment.org_id,
        deployment=deployment,
        version=version,
        quantization=choice.quantization,
        needs=wishes_json(needs),
        pins=wishes_json(pins),
        replicas=choice.replicas,
        rollout=dict(rollout or {}),
        reason=reason,
        created_by=actor,
    )
    if deployment.revision_id is None:
        deployment.revision = next_revision(
            deployment,
            actor,
            version=version,
            artefact=Artefact.objects.for_org(deployment.org_id).get(pk=choice.made_of),
            engine=choice.engine,
            tier=choice.tier,
            context_length=choice.context_length,
            slots=choice.slots,
            threads=choice.threads,
            memory=choice.memory.total,
            replicas=choice.replicas,
            needs=wishes_json(needs),
            plan={**plan_json(planned), "pins": wishes_json(pins)},
            reason=reason,
        )
        deployment.save(update_fields=["revision"])
    record(deployment, "preparing", now, actor=actor, quantization=choice.quantization)


def again(deployment: Deployment, actor: User | None, now: datetime) -> None:
    """Of one whose preparation failed: from the beginning, in the caller's transaction."""
    last = latest_preparation(deployment)
    if last is None or last.state != Prepared.FAILED:
        return
    last.state, last.passed, last.conversion, last.ours, last.code, last.message = (
        Prepared.OPEN,
        [],
        None,
        False,
        "",
        "",
    )
    last.ended_at = None
    last.save()
    record(deployment, "preparing", now, actor=actor, quantization=last.quantization)


def look(deployment: Deployment, provider: Provider, now: datetime) -> datetime | None:
    """One step of what is prepared. Returns when to look again, and None when the usual look is to go on."""
    preparation = open_preparation(deployment)
    waits = is_placeholder(deployment.revision)
    if preparation is None:
        return _nothing_left(deployment, now) if waits and deployment.desired == Desired.RUNNING else None
    if deployment.desired == Desired.DELETED:
        with transaction.atomic():
            if lease.locked(deployment) is not None:
                supersede(deployment, now)
        return None
    conversion = preparation.conversion
    if conversion is None or conversion.final:
        if _plan_again(deployment, preparation, provider, now):
            return now
    elif waits and deployment.desired == Desired.RUNNING:
        _explain(deployment, preparation, now)
    return now + POLL if waits and deployment.desired == Desired.RUNNING else None


def next_look(deployment: Deployment, now: datetime) -> datetime:
    """When at the latest, for what is prepared beside what runs."""
    return now + (POLL if open_preparation(deployment) is not None else timedelta(seconds=NEVER))


def _plan_again(deployment: Deployment, preparation: Preparation, provider: Provider, now: datetime) -> bool:
    """With what is known now. Whether what is wanted, or the preparation's end, was changed."""
    conversion, passed = preparation.conversion, list(preparation.passed)
    if conversion is not None and conversion.state == ConversionState.CANCELLED:
        return _fail(deployment, preparation, STOPPED, "Its conversion was cancelled. Resume begins it again.", now)
    if conversion is not None and conversion.state in (ConversionState.FAILED, ConversionState.REFUSED):
        passed.append(_passed(conversion.quantization, conversion.code, conversion.message))
    needs, pins = read_wishes(preparation.needs, preparation.pins)
    barred = {each["quantization"]: each["message"] for each in passed}
    try:
        planned = make_plan(preparation.version, needs, pins, preparation.replicas, provider=provider, barred=barred)
    except ApiError as problem:
        if problem.status == 503:  # it is asked again at the next look
            return False
        return _fail(deployment, preparation, problem.code, problem.message, now)
    if conversion is not None and conversion.state == ConversionState.DONE:
        passed += _not_taken(planned, conversion.artefact_id, conversion.quantization)
    if planned.choice is None:
        return _fail(deployment, preparation, NONE_LEFT, _none_left(passed, planned), now, passed)
    with transaction.atomic():
        row = lease.locked(deployment)
        if row is None or not _still_open(preparation):
            return True
        _tell_passed(row, preparation, passed, now)
        if planned.choice.made_of:
            return _convert(row, preparation, planned.choice, now)
        _run(row, preparation, needs, pins, planned, now)
        return True


def _run(row: Deployment, preparation: Preparation, needs: Needs, pins: Pins, planned: Plan, now: datetime) -> None:
    """The files are there: a revision as any other."""
    end(preparation, Prepared.DONE, now)
    actor, choice = preparation.created_by, planned.choice
    try:
        with transaction.atomic():
            revise(row, actor, preparation.version, needs, pins, planned, now, preparation.rollout, preparation.reason)
    except ApiError as problem:  # what stands beside it does not fit it any more
        end(preparation, Prepared.FAILED, now, problem.code, problem.message)
        record(row, "preparation_failed", now, reason=problem.code, message=problem.message[:400])
        return
    row.failures = 0
    row.save(update_fields=["failures"])
    record(row, "prepared", now, quantization=choice.quantization if choice else "")


def _convert(row: Deployment, preparation: Preparation, choice: Choice, now: datetime) -> bool:
    preparation.quantization = choice.quantization
    try:
        with transaction.atomic():
            made, new = start_for(
                row.org, preparation.created_by, preparation.version, choice.quantization, choice.file_format
            )
    except ApiError as problem:
        end(preparation, Prepared.FAILED, now, problem.code, problem.message)
        _write_failed(row, problem.code, problem.message, now)
        return True
    preparation.conversion, preparation.ours = made, new
    preparation.ours = begun_for_a_deployment(preparation)
    preparation.save(update_fields=["conversion", "ours", "quantization", "passed"])
    if is_placeholder(row.revision) and row.desired == Desired.RUNNING:
        _write_waiting(row, preparation, now)
    return False


def _fail(
    deployment: Deployment,
    preparation: Preparation,
    code: str,
    message: str,
    now: datetime,
    passed: list[dict[str, Any]] | None = None,
) -> bool:
    with transaction.atomic():
        row = lease.locked(deployment)
        if row is not None and _still_open(preparation):
            _tell_passed(row, preparation, passed or preparation.passed, now)
            end(preparation, Prepared.FAILED, now, code, message)
            _write_failed(row, code, message, now)
    return True


def _write_failed(row: Deployment, code: str, message: str, now: datetime) -> None:
    record(row, "preparation_failed", now, reason=code, message=message[:400])
    if is_placeholder(row.revision) and row.desired == Desired.RUNNING:
        write_state(row, Decision((), State.FAILED, code[:64], message[:400], now.timestamp() + NEVER, 1), now)


def _nothing_left(deployment: Deployment, now: datetime) -> datetime:
    """It failed before it had anything to run. It stays so until somebody acts."""
    with transaction.atomic():
        row, last = lease.locked(deployment), latest_preparation(deployment)
        if row is not None and last is not None and last.state == Prepared.FAILED:
            told = Decision((), State.FAILED, last.code[:64], last.message[:400], now.timestamp() + NEVER, 1)
            write_state(row, told, now)
    return now + timedelta(seconds=IDLE)


def _explain(deployment: Deployment, preparation: Preparation, now: datetime) -> None:
    with transaction.atomic():
        row = lease.locked(deployment)
        if row is not None:
            _write_waiting(row, preparation, now)


def _write_waiting(row: Deployment, preparation: Preparation, now: datetime) -> None:
    at = (now + POLL).timestamp()
    write_state(row, Decision((), State.QUEUED, PREPARING, sentence_of(preparation), at, 0), now)


def _still_open(preparation: Preparation) -> bool:
    """And asked for as it was when this look began."""
    rows = Preparation.objects.for_org(preparation.org_id).select_for_update()
    return rows.filter(pk=preparation.pk, state=Prepared.OPEN, replicas=preparation.replicas).exists()


def _tell_passed(row: Deployment, preparation: Preparation, passed: list[dict[str, Any]], now: datetime) -> None:
    known = {each["quantization"] for each in preparation.passed}
    for each in passed:
        if each["quantization"] not in known:
            record(row, "quantization_passed_over", now, **each)
    preparation.passed = passed
    preparation.save(update_fields=["passed"])


def _not_taken(planned: Plan, artefact_id: Any, quantization: str) -> list[dict[str, Any]]:
    """Why what was made for it is not what the plan takes now that it is measured; nothing when it is."""
    if planned.choice is not None and planned.choice.artefact_id == str(artefact_id):
        return []
    found = next((each for each in planned.rejected if each.artefact_id == str(artefact_id)), None)
    return [] if found is None else [_passed(quantization, found.code, found.message)]


def _passed(quantization: str, code: str, message: str) -> dict[str, Any]:
    return {"quantization": quantization, "reason": code, "message": message[:300]}


def _none_left(passed: list[dict[str, Any]], planned: Plan) -> str:
    tried = "; ".join(f"{each['quantization']}: {each['message']}" for each in passed)
    others = next((each.message for each in planned.rejected if not is_to_be_made(each.artefact_id)), "")
    helps = " ".join(change.message for change in planned.changes)
    does = helps or "Ask for a lower quality, a larger machine, or bring files that fit."
    return f"No quantization does what was asked. Tried: {tried or others or 'none can be made here'}. {does}"
