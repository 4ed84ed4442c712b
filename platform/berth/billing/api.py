"""Routes of usage, statements and prices. Amounts are for those with billing.read; others see counts only."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.urls import path
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from berth.billing import events, prices, statements
from berth.billing import serializers as out
from berth.billing.csvfile import statement_csv
from berth.billing.rating import text
from berth.billing.statements import Line, Month
from berth.billing.usage import GROUPS, Sums, usage
from berth.orgs.permissions import Action, allows
from berth.orgs.views import OrgView
from berth.web.errors import Forbidden
from berth.web.pagination import CursorPagination, page, page_of
from berth.web.serializers import PageQuery, StrictSerializer, read_query
from berth_gateway.contract import Outcome


class UsageQuery(StrictSerializer):
    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        start = serializers.DateTimeField(required=False, source="start")
        return super().get_fields() | {"from": start}  # a word that Python keeps for itself

    to = serializers.DateTimeField(required=False, source="end")
    group_by = serializers.ChoiceField(choices=GROUPS, default="deployment")


class EventsQuery(PageQuery):
    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        start = serializers.DateTimeField(required=False, source="start")
        return super().get_fields() | {"from": start}

    to = serializers.DateTimeField(required=False, source="end")
    deployment = serializers.CharField(required=False, max_length=63, help_text="Name or id")
    key = serializers.UUIDField(required=False)
    outcome = serializers.ChoiceField(required=False, choices=[outcome.value for outcome in Outcome])
    statement_line = serializers.UUIDField(required=False, help_text="Only what is behind this line; alone")


class UsageView(OrgView):
    actions = {"GET": Action.USAGE_READ}

    @extend_schema(operation_id="usage_read", parameters=[UsageQuery], responses=out.UsageOut)
    def get(self, request: Request, org: str) -> Response:
        query = read_query(UsageQuery, request)
        found = usage(self.org, query.get("start"), query.get("end"), query["group_by"])
        money = allows(self.member.role, Action.BILLING_READ)
        answer = {
            "from": found.start,
            "to": found.end,
            "time_zone": self.org.time_zone,
            "currency": statements.currency(),
            "as_of": found.as_of,
            "behind_seconds": found.behind_seconds,
            "groups": [_sums(group.sums, money) | {"key": group.key, "label": group.label} for group in found.groups],
            "totals": _sums(found.totals, money),
            "reconciles_with": found.reconciles_with if money else None,
        }
        return Response(out.UsageOut(answer).data)


class UsageEventsView(OrgView):
    actions = {"GET": Action.USAGE_READ}

    @extend_schema(operation_id="usage_events_list", parameters=[EventsQuery], responses=page_of(out.UsageEventOut))
    def get(self, request: Request, org: str) -> Response:
        query = read_query(EventsQuery, request)
        money = allows(self.member.role, Action.BILLING_READ)
        paginator = CursorPagination()
        if "statement_line" in query:
            if not money:
                raise Forbidden(Action.BILLING_READ)
            entries = paginator.paginate_queryset(events.line_entries(self.org, query["statement_line"]), request)
            shown = events.show_entries(self.org, entries or [])
        else:
            rows = paginator.paginate_queryset(events.events(self.org, query), request)
            shown = events.show(self.org, rows or [])
        items = out.UsageEventOut([_event(each, money) for each in shown], many=True)
        return paginator.get_paginated_response(items.data)


class StatementsView(OrgView):
    actions = {"GET": Action.BILLING_READ}

    @extend_schema(operation_id="statements_list", responses=page_of(out.StatementOut))
    def get(self, request: Request, org: str) -> Response:
        items = [_month(month) for month in statements.months(self.org)]
        return Response({"items": out.StatementOut(items, many=True).data, "next": None})


class StatementView(OrgView):
    actions = {"GET": Action.BILLING_READ}

    @extend_schema(operation_id="statements_read", responses=out.StatementDetailOut)
    def get(self, request: Request, org: str, period: str) -> Response:
        month = statements.month(self.org, period)
        answer = _month(month) | {"lines": [_line(line) for line in month.lines]}
        return Response(out.StatementDetailOut(answer).data)


class _AnyAnswer(BaseContentNegotiation):
    """A download answers with its own type, whatever the client says it accepts; errors stay JSON."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return next(iter(parsers), None)

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        renderer = next(iter(renderers))
        return renderer, renderer.media_type


class StatementCsvView(OrgView):
    actions = {"GET": Action.BILLING_READ}
    content_negotiation_class = _AnyAnswer

    @extend_schema(operation_id="statements_csv", responses={(200, "text/csv"): OpenApiTypes.STR})
    def get(self, request: Request, org: str, period: str) -> HttpResponse:
        month = statements.month(self.org, period)
        name = f"statement-{self.org.slug}-{month.period}.csv"
        return HttpResponse(
            statement_csv(month),
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )


class LineEventsView(OrgView):
    actions = {"GET": Action.BILLING_READ}

    @extend_schema(
        operation_id="statement_line_events_list",
        parameters=[PageQuery, OpenApiParameter("line_id", OpenApiTypes.UUID, OpenApiParameter.PATH)],
        responses=page_of(out.LineEventOut),
    )
    def get(self, request: Request, org: str, period: str, line_id: UUID) -> Response:
        read_query(PageQuery, request)
        paginator = CursorPagination()
        entries = paginator.paginate_queryset(events.line_entries(self.org, line_id, period), request)
        shown = events.show_entries(self.org, entries or [])
        items = [
            _event(each, money=True) | {"quantity": each.quantity, "correction": each.correction} for each in shown
        ]
        return paginator.get_paginated_response(out.LineEventOut(items, many=True).data)


class PricesView(OrgView):
    actions = {"GET": Action.BILLING_READ}

    @extend_schema(operation_id="prices_list", parameters=[PageQuery], responses=page_of(out.PriceOut))
    def get(self, request: Request, org: str) -> Response:
        versions = prices.of_org(self.org)
        return page(request, versions, out.PriceOut, current=prices.current_ids(self.org, timezone.now()))


def _sums(sums: Sums, money: bool) -> dict[str, Any]:
    return {
        "requests": sums.requests,
        "prompt_tokens": sums.prompt_tokens,
        "cached_tokens": sums.cached_tokens,
        "completion_tokens": sums.completion_tokens,
        "amount": text(sums.amount) if money else None,
    }


def _event(shown: events.Shown, money: bool) -> dict[str, Any]:
    event = shown.event
    plain = (
        "id", "accepted_at", "endpoint", "stream", "outcome", "status", "counted_by", "prompt_tokens", "cached_tokens",
        "completion_tokens", "reasoning_tokens", "first_token_ms", "duration_ms",
    )  # fmt: skip
    return {name: getattr(event, name) for name in plain} | {
        "deployment": {"id": event.deployment_id, "name": shown.deployment_name or None},
        "key": {"id": event.key_id, "name": shown.key_name or None},
        "amount": text(shown.amount) if money and shown.amount is not None else None,
    }


def _month(month: Month) -> dict[str, Any]:
    return {
        "period": month.period,
        "status": month.status,
        "starts_at": month.starts_at,
        "ends_at": month.ends_at,
        "currency": month.currency,
        "total_micro": month.total_micro,
        "content_hash": month.content_hash,
    }


def _line(line: Line) -> dict[str, Any]:
    return {
        "id": line.id,
        "deployment": {"id": line.deployment_id, "name": line.deployment_name or None},
        "unit": line.unit,
        "price_version": line.price_number,
        "unit_price": text(line.unit_price),
        "quantity": line.quantity,
        "exact": text(line.exact),
        "amount_micro": line.amount_micro,
    }


_ORG = "orgs/<slug:org>"
urlpatterns = [
    path(f"{_ORG}/usage", UsageView.as_view(), name="usage"),
    path(f"{_ORG}/usage/events", UsageEventsView.as_view(), name="usage-events"),
    path(f"{_ORG}/statements", StatementsView.as_view(), name="statements"),
    path(f"{_ORG}/statements/<slug:period>", StatementView.as_view(), name="statement"),
    path(f"{_ORG}/statements/<slug:period>/csv", StatementCsvView.as_view(), name="statement-csv"),
    path(
        f"{_ORG}/statements/<slug:period>/lines/<uuid:line_id>/events",
        LineEventsView.as_view(),
        name="statement-line-events",
    ),
    path(f"{_ORG}/prices", PricesView.as_view(), name="prices"),
]
