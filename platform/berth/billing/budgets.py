"""Budgets: hard limits on what is spent. One function per intent; gateways keep them (docs/limits.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from berth.billing import claims
from berth.billing.budget_periods import period_at
from berth.billing.locks import while_budgeting
from berth.billing.models import Budget, BudgetScope
from berth.billing.rating import EXACT, total
from berth.billing.spending import Subject, Waiting, spent_by_gateway
from berth.billing.watch import write_down
from berth.deployments.models import Deployment, State
from berth.keys.models import ApiKey
from berth.orgs.models import Member, Role
from berth.orgs.permissions import Action, allows
from berth.outbox.services import announce
from berth.outbox.valkey import UNAVAILABLE
from berth.web.errors import ApiError, Conflict, Forbidden, NotFound
from berth_gateway.contract import Period

MOST = Decimal(9_000_000)
_PICO = Decimal(1).scaleb(-12)


@dataclass(frozen=True)
class Standing:
    """A budget in its current period. `spent` is the ledger's, with what is still to be booked; `reserved` what gateways have set
    aside for requests that run or are about to, None while Valkey does not say."""

    budget: Budget
    name: str  # of what it is about
    period: Period
    spent: Decimal
    reserved: Decimal | None

    @property
    def left(self) -> Decimal:
        return max(Decimal(0), EXACT.subtract(self.budget.amount, EXACT.add(self.spent, self.reserved or Decimal(0))))


@dataclass(frozen=True)
class Changed:
    """`change`: by which to ask on how many gateways it holds."""

    standing: Standing
    change: int


def visible(member: Member) -> QuerySet[Budget]:
    """All; for developers those of their own keys and deployments."""
    rows = Budget.objects.for_org(member.org_id)
    if member.role != Role.DEVELOPER:
        return rows
    keys = ApiKey.objects.for_org(member.org_id).filter(created_by=member.user_id).values("pk")
    deployments = Deployment.objects.for_org(member.org_id).filter(created_by=member.user_id).values("pk")
    return rows.filter(
        Q(scope=BudgetScope.KEY, subject_id__in=keys) | Q(scope=BudgetScope.DEPLOYMENT, subject_id__in=deployments)
    )


def standings(member: Member, budgets: Sequence[Budget], *, now: datetime | None = None) -> list[Standing]:
    now = now or timezone.now()
    zone = member.org.time_zone
    periods = {budget.pk: period_at(budget.period, now, zone) for budget in budgets}
    names = {budget.pk: f"{budget.pk}:{periods[budget.pk].name}" for budget in budgets}
    try:
        claimed = claims.read(list(names.values()))
    except UNAVAILABLE:
        claimed = None
    waiting = Waiting({member.org_id})
    labels = _labels(member, budgets)
    found = []
    for budget in budgets:
        period = periods[budget.pk]
        subject = Subject(budget.org_id, budget.scope, budget.subject_id)
        by_gateway = spent_by_gateway(subject, period, waiting)
        reserved = None
        if claimed is not None:
            mine = claimed[names[budget.pk]]
            parts = (
                max(
                    Decimal(0),
                    EXACT.subtract(EXACT.multiply(Decimal(claim), _PICO), by_gateway.get(gateway, Decimal(0))),
                )
                for gateway, claim in mine.items()
            )
            reserved = total(parts)
        found.append(Standing(budget, labels.get(budget.pk, ""), period, total(by_gateway.values()), reserved))
    return found


def get(member: Member, budget_id: UUID) -> Standing:
    return standings(member, [_found(member, budget_id)])[0]


def create(
    member: Member,
    *,
    scope: str,
    amount: Decimal,
    period: str,
    subject_id: UUID | None = None,
    now: datetime | None = None,
) -> Changed:
    """Refuses from the next request on whatever could exceed `amount` in a period. What was spent before in the period counts."""
    subject = member.org_id if scope == BudgetScope.ORG else subject_id
    if subject is None:
        raise ApiError("required", "Say what the budget is about.", field="subject_id")
    if scope == BudgetScope.ORG and subject_id not in (None, member.org_id):
        raise ApiError("invalid", "An organisation's budget is about the organisation itself.", field="subject_id")
    now = now or timezone.now()
    _require_may_set(member, scope, subject)
    try:
        with transaction.atomic():
            while_budgeting(member.org_id)
            _require_within_org(member, scope, period, amount)
            budget = Budget.objects.create(
                org=member.org, scope=scope, subject_id=subject, period=period, amount=amount, version=_version(now),
                created_by=member.user,
            )  # fmt: skip
            change = _told(budget, now)
    except IntegrityError:
        raise Conflict(
            "budget_exists", "There is a budget for this and that period already. Change that one.", field="period"
        ) from None
    return Changed(standings(member, [budget], now=now)[0], change)


def change(member: Member, budget_id: UUID, *, amount: Decimal, now: datetime | None = None) -> Changed:
    """Lowering it under what is spent stops requests at once; raising it lets them go on at once."""
    now = now or timezone.now()
    with transaction.atomic():
        while_budgeting(member.org_id)
        budget = _found(member, budget_id, lock=True)
        _require_may_set(member, budget.scope, budget.subject_id)
        _require_within_org(member, budget.scope, budget.period, amount)
        budget.amount = amount
        budget.version = max(budget.version + 1, _version(now))
        budget.save(update_fields=["amount", "version"])
        change_id = _told(budget, now)
    return Changed(standings(member, [budget], now=now)[0], change_id)


def remove(member: Member, budget_id: UUID) -> int:
    """Nothing is limited by it any more. Returns the change's id."""
    with transaction.atomic():
        budget = _found(member, budget_id, lock=True)
        _require_may_set(member, budget.scope, budget.subject_id)
        budget.delete()
        return announce("budgets")


def _version(now: datetime) -> int:
    return int(now.timestamp() * 1_000_000)


def _found(member: Member, budget_id: UUID, *, lock: bool = False) -> Budget:
    rows = visible(member).filter(pk=budget_id)
    budget = (rows.select_for_update() if lock else rows).first()
    if budget is None:
        raise NotFound("budget")
    return budget


def _told(budget: Budget, now: datetime) -> int:
    """Written to Valkey before gateways hear of it, so that none of them finds it missing."""
    transaction.on_commit(lambda: write_down([budget.pk], now=now), robust=True)
    return announce("budgets")


def _require_may_set(member: Member, scope: str, subject: UUID) -> None:
    """The organisation's: owner and billing. Keys' and deployments': also admins, and developers for their own. Members': not
    developers. A subject that is not this organisation's does not exist."""
    if scope == BudgetScope.ORG:
        if not allows(member.role, Action.BUDGETS_WRITE_ORG):
            raise Forbidden(Action.BUDGETS_WRITE_ORG)
        return
    own = False
    if scope == BudgetScope.KEY:
        found = ApiKey.objects.for_org(member.org_id).filter(pk=subject).first()
        own = found is not None and found.created_by_id == member.user_id
        known = found is not None
    elif scope == BudgetScope.DEPLOYMENT:
        row = Deployment.objects.for_org(member.org_id).filter(pk=subject).exclude(state=State.DELETED).first()
        own = row is not None and row.created_by_id == member.user_id
        known = row is not None
    else:
        known = Member.objects.for_org(member.org_id).filter(pk=subject).exists()
    if not known:
        raise ApiError("budget.subject_unknown", "There is no such thing in this organisation.", field="subject_id")
    if member.role == Role.DEVELOPER and not own:
        raise Forbidden(Action.BUDGETS_WRITE)


def _require_within_org(member: Member, scope: str, period: str, amount: Decimal) -> None:
    if scope == BudgetScope.ORG:
        return
    whole = Budget.objects.for_org(member.org_id).filter(scope=BudgetScope.ORG, period=period).first()
    if whole is not None and amount > whole.amount:
        raise ApiError(
            "budget.above_organisation",
            "This is more than the whole organisation may spend in that period. Choose less, or have the organisation's budget raised.",
            field="amount",
        )


def _labels(member: Member, budgets: Sequence[Budget]) -> dict[UUID, str]:
    """Names of what budgets are about; deleted ones keep theirs."""
    ids = {budget.subject_id for budget in budgets}
    names: dict[UUID, str] = dict(ApiKey.objects.for_org(member.org_id).filter(pk__in=ids).values_list("pk", "name"))
    names |= dict(Deployment.objects.for_org(member.org_id).filter(pk__in=ids).values_list("pk", "name"))
    people = Member.objects.for_org(member.org_id).filter(pk__in=ids).select_related("user")
    names |= {each.pk: each.user.name or each.user.email for each in people}
    return {b.pk: member.org.name if b.scope == BudgetScope.ORG else names.get(b.subject_id, "") for b in budgets}


def instant(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
