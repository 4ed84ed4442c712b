"""What Valkey must know of budgets, written every few seconds: what the ledger says each gateway has spent, up to which position of
its spool. With it a gateway that starts again knows what it spent, and a Valkey that lost everything is filled again."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import UUID

from django.utils import timezone

from berth.billing import claims
from berth.billing.budget_periods import periods_from
from berth.billing.claims import Told
from berth.billing.locks import one_moment
from berth.billing.models import Budget, BudgetPeriod
from berth.billing.prices import ensure_default
from berth.billing.spending import Subject, Waiting, pico, spent_by_gateway
from berth.metering.models import GatewayPosition
from berth_gateway.contract import Period

log = logging.getLogger(__name__)

AHEAD = timedelta(minutes=15)  # before its beginning a period is written down
KEEP_SECONDS = 3 * 24 * 3600  # after its end, for what is still under way
GONE_AFTER = timedelta(days=1)  # a gateway that is silent for so long has nothing left to tell


def look(*, now: datetime | None = None) -> int:
    """All budgets; returns how many periods were written."""
    return write_down(None, now=now or timezone.now())


def write_down(only: Collection[UUID] | None, *, now: datetime) -> int:
    """Valkey being away raises; the next look repairs."""
    rows = Budget.objects.across_orgs("gateways keep the budgets of every organisation").select_related("org")
    if only is not None:
        rows = rows.filter(pk__in=only)
    budgets = list(rows)
    if not budgets:
        return 0
    ensure_default()
    wanted = [(budget, period) for budget in budgets for period in _due(budget, now)]
    with one_moment():
        positions = dict(GatewayPosition.objects.values_list("gateway", "position"))
        waiting = Waiting({budget.org_id for budget in budgets})
        spent = [
            spent_by_gateway(Subject(budget.org_id, budget.scope, budget.subject_id), period, waiting)
            for budget, period in wanted
        ]
    gone = set(GatewayPosition.objects.filter(updated_at__lt=now - GONE_AFTER).values_list("gateway", flat=True))
    gone -= claims.gateways()
    for (budget, period), amounts in zip(wanted, spent, strict=True):
        exact = {gateway: pico(amount) for gateway, amount in amounts.items()}
        _write(budget, period, exact, positions, gone)
    return len(wanted)


def _due(budget: Budget, now: datetime) -> list[Period]:
    coming = (now + AHEAD).timestamp()
    return [period for period in periods_from(budget.period, now, budget.org.time_zone) if period.starts_at <= coming]


def _write(budget: Budget, period: Period, spent: dict[str, int], positions: dict[str, int], gone: set[str]) -> None:
    # The row is there before Valkey knows the period: if it is there already and Valkey knows nothing, Valkey has lost it.
    row, new = BudgetPeriod.objects.get_or_create(budget=budget, name=period.name)
    mirrored = {gateway: int(claim) for gateway, claim in row.claims.items() if gateway not in gone}
    told = [
        Told(
            gateway=gateway,
            spent_pico=spent.get(gateway, 0),
            position=positions.get(gateway, 0),
            claim_pico=max(spent.get(gateway, 0), mirrored.get(gateway, 0)),
            gone=gateway in gone,
        )
        for gateway in sorted({*positions, *mirrored, *spent})
    ]
    ends = 0 if period.name == "total" else int(period.ends_at) + KEEP_SECONDS
    found = claims.seed(
        f"{budget.pk}:{period.name}",
        limit_pico=pico(budget.amount),
        version=budget.version,
        lost=not new,
        expires_at=ends,
        told=told,
    )
    if found.written and not new:
        log.warning("budget_written_anew", extra={"budget_id": budget.pk, "reason": "valkey_lost_it"})
    seen = {gateway: str(claim) for gateway, claim in found.by_gateway.items() if claim}
    if seen != row.claims:
        row.claims = seen
        row.save(update_fields=["claims"])
