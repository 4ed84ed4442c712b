"""Routes of budgets."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from berth.billing import budgets, statements
from berth.billing.budgets import MOST, Changed, Standing, instant
from berth.billing.models import BudgetPeriodKind, BudgetScope
from berth.billing.rating import text
from berth.keys.api import ChangeRefOut
from berth.orgs.idempotency import idempotent
from berth.orgs.permissions import Action
from berth.orgs.views import OrgView
from berth.web.pagination import CursorPagination, page_of
from berth.web.serializers import NoBody, PageQuery, StrictSerializer, read_body, read_query


def _amount() -> serializers.DecimalField:
    return serializers.DecimalField(max_digits=19, decimal_places=12, min_value=0, max_value=MOST)


class BudgetIn(StrictSerializer):
    scope = serializers.ChoiceField(choices=BudgetScope.choices)
    subject_id = serializers.UUIDField(required=False, help_text="Of the deployment, key or member")
    period = serializers.ChoiceField(choices=BudgetPeriodKind.choices)
    amount = _amount()


class BudgetChangeIn(StrictSerializer):
    amount = _amount()


class BudgetSubjectOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField(allow_null=True)


class BudgetOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    scope = serializers.ChoiceField(choices=BudgetScope.choices)
    subject = BudgetSubjectOut()
    period = serializers.ChoiceField(choices=BudgetPeriodKind.choices)
    period_name = serializers.CharField(help_text='"2026-11", "2026-11-30" or "total"')
    starts_at = serializers.DateTimeField(allow_null=True)
    ends_at = serializers.DateTimeField(allow_null=True)
    time_zone = serializers.CharField()
    currency = serializers.CharField()
    limit = serializers.CharField(help_text="Exact")
    spent = serializers.CharField(help_text="In this period, usage that is still to be booked included")
    reserved = serializers.CharField(
        allow_null=True, help_text="Set aside by gateways for running requests; null: not known just now"
    )
    left = serializers.CharField()
    created_at = serializers.DateTimeField()


class ChangedBudgetOut(BudgetOut):
    change = ChangeRefOut()


class RemovedOut(serializers.Serializer[Any]):
    change = ChangeRefOut()


class BudgetsView(OrgView):
    actions = {"GET": Action.BUDGETS_READ, "POST": Action.BUDGETS_WRITE}

    @extend_schema(operation_id="list_budgets", parameters=[PageQuery], responses=page_of(BudgetOut))
    def get(self, request: Request, org: str) -> Response:
        """With what was spent and what is reserved now. Developers see those of their own keys and deployments."""
        read_query(PageQuery, request)
        paginator = CursorPagination()
        rows = paginator.paginate_queryset(budgets.visible(self.member), request)
        found = budgets.standings(self.member, rows or [])
        return paginator.get_paginated_response(BudgetOut([_shown(self, each) for each in found], many=True).data)

    @extend_schema(operation_id="create_budget", request=BudgetIn, responses={201: ChangedBudgetOut})
    @idempotent
    def post(self, request: Request, org: str) -> Response:
        """A hard limit: requests that could exceed it are refused on every gateway within a second."""
        return Response(_changed(self, budgets.create(self.member, **read_body(BudgetIn, request))), status=201)


class BudgetView(OrgView):
    actions = {"GET": Action.BUDGETS_READ, "PATCH": Action.BUDGETS_WRITE, "DELETE": Action.BUDGETS_WRITE}

    @extend_schema(operation_id="get_budget", responses=BudgetOut)
    def get(self, request: Request, org: str, budget_id: UUID) -> Response:
        return Response(BudgetOut(_shown(self, budgets.get(self.member, budget_id))).data)

    @extend_schema(operation_id="change_budget", request=BudgetChangeIn, responses=ChangedBudgetOut)
    def patch(self, request: Request, org: str, budget_id: UUID) -> Response:
        """Lowering it under what is spent stops requests; raising it lets them go on. Both at once."""
        return Response(_changed(self, budgets.change(self.member, budget_id, **read_body(BudgetChangeIn, request))))

    @extend_schema(operation_id="remove_budget", request=NoBody, responses=RemovedOut)
    def delete(self, request: Request, org: str, budget_id: UUID) -> Response:
        read_body(NoBody, request)
        return Response({"change": {"id": budgets.remove(self.member, budget_id)}})


def _shown(view: OrgView, standing: Standing) -> dict[str, Any]:
    budget, period = standing.budget, standing.period
    bounded = period.name != "total"
    return {
        "id": budget.pk,
        "scope": budget.scope,
        "subject": {"id": budget.subject_id, "name": standing.name or None},
        "period": budget.period,
        "period_name": period.name,
        "starts_at": instant(period.starts_at) if bounded else None,
        "ends_at": instant(period.ends_at) if bounded else None,
        "time_zone": view.org.time_zone,
        "currency": statements.currency(),
        "limit": text(budget.amount),
        "spent": text(standing.spent),
        "reserved": None if standing.reserved is None else text(standing.reserved),
        "left": text(standing.left),
        "created_at": budget.created_at,
    }


def _changed(view: OrgView, changed: Changed) -> dict[str, Any]:
    shown = BudgetOut(_shown(view, changed.standing)).data
    return {**shown, "change": {"id": changed.change}}


_ORG = "orgs/<slug:org>"
urlpatterns = [
    path(f"{_ORG}/budgets", BudgetsView.as_view(), name="budgets"),
    path(f"{_ORG}/budgets/<uuid:budget_id>", BudgetView.as_view(), name="budget"),
]
