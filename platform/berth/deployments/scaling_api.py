"""Routes of scaling: how many replicas there are to be and why, what was decided before, and declared peaks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from berth.deployments import selectors
from berth.deployments.models import ScalingDecision
from berth.deployments.scaling.observation import Peak
from berth.deployments.scaling_services import EVERY, MOST_PEAKS, decisions_of, scaling_of, set_peaks, set_wishes
from berth.deployments.scaling_wishes import LEAST_SHARE, MOST_HEAD_ROOM, MOST_SHARE, MOST_STABILISATION
from berth.orgs.models import User
from berth.orgs.permissions import Action
from berth.orgs.views import OrgView
from berth.planner.needs import MAX_REPLICAS
from berth.web.pagination import page, page_of
from berth.web.serializers import PageQuery, StrictSerializer, read_body


class ScalingReasonOut(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="forecast, jump, backlog, peak, held, least, most, unknown_capacity")
    text = serializers.CharField()
    values = serializers.DictField(child=serializers.FloatField())


class ScalingFiguresOut(serializers.Serializer[Any]):
    """Requests a second, replicas, requests."""

    rate = serializers.FloatField(help_text="Requests a second over the last minute")
    forecast = serializers.FloatField(help_text="Requests a second that it is prepared for")
    need = serializers.FloatField(help_text="Replicas that the forecast needs, before rounding and head-room")
    capacity = serializers.FloatField(
        allow_null=True, help_text="Requests a second of one replica; null: not known yet"
    )
    head_room = serializers.FloatField(help_text="What the chosen number can do, times the forecast")
    ready = serializers.IntegerField()
    starting = serializers.IntegerField()
    in_flight = serializers.IntegerField()
    queued = serializers.IntegerField()
    cold_start_seconds = serializers.FloatField()
    concurrency = serializers.IntegerField(
        default=None, allow_null=True, help_text="Requests that a replica gets at once at most; null: not known"
    )


class ScalingDecisionOut(serializers.ModelSerializer[ScalingDecision]):
    reasons = ScalingReasonOut(many=True, help_text="The one that decided first")
    figures = ScalingFiguresOut()

    class Meta:
        model = ScalingDecision
        fields = ("id", "created_at", "before", "desired", "reasons", "figures")
        read_only_fields = fields


class PeakOut(serializers.Serializer[Any]):
    start = serializers.SerializerMethodField()
    end = serializers.SerializerMethodField()
    every = serializers.ChoiceField(choices=sorted(EVERY))
    replicas = serializers.IntegerField(allow_null=True)
    requests_per_second = serializers.FloatField(allow_null=True)

    def get_start(self, instance: dict[str, Any]) -> datetime:
        return datetime.fromtimestamp(instance["start"], UTC)

    def get_end(self, instance: dict[str, Any]) -> datetime:
        return datetime.fromtimestamp(instance["end"], UTC)


class ScalingOut(serializers.Serializer[Any]):
    automatic = serializers.BooleanField(help_text="false: the least and the most are the same number")
    least = serializers.IntegerField()
    most = serializers.IntegerField()
    desired = serializers.IntegerField()
    peaks = PeakOut(many=True)
    stabilisation_seconds = serializers.FloatField()
    head_room = serializers.FloatField(allow_null=True, help_text="null: learned from how bursty the traffic is")
    share = serializers.FloatField(help_text="Of the requests that are to be within the goals")
    daily = serializers.BooleanField(help_text="Whether the daily pattern is learned")
    replica_limit = serializers.IntegerField(help_text="Requests that a replica gets at once; more wait at the gateway")
    latest = ScalingDecisionOut(allow_null=True, help_text="null: nothing was decided yet")


class PeakIn(StrictSerializer):
    start = serializers.DateTimeField(help_text="Of the first time")
    end = serializers.DateTimeField()
    every = serializers.ChoiceField(choices=sorted(EVERY), required=False, default="once")
    replicas = serializers.IntegerField(required=False, min_value=1, max_value=MAX_REPLICAS, allow_null=True)
    requests_per_second = serializers.FloatField(required=False, min_value=0, max_value=1e6, allow_null=True)


class PeaksIn(StrictSerializer):
    peaks = PeakIn(many=True, help_text=f"At most {MOST_PEAKS}")


class ScalingIn(StrictSerializer):
    """What is absent stays. Bounds, idle time and needs are the deployment's own fields; peaks have an address of their own."""

    stabilisation_seconds = serializers.FloatField(
        required=False,
        min_value=30,
        max_value=MOST_STABILISATION,
        help_text="How long fewer must have been enough before a replica goes",
    )
    head_room = serializers.FloatField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=MOST_HEAD_ROOM,
        help_text="Factor on the forecast; null: learned from how bursty the traffic is",
    )
    share = serializers.FloatField(
        required=False,
        min_value=LEAST_SHARE,
        max_value=MOST_SHARE,
        help_text="Of the requests that are to be within the goals",
    )
    daily = serializers.BooleanField(required=False, help_text="Whether the daily pattern is learned")


class ScalingView(OrgView):
    actions = {"GET": Action.DEPLOYMENTS_READ, "PATCH": Action.DEPLOYMENTS_WRITE}

    @extend_schema(operation_id="get_deployment_scaling", responses=ScalingOut)
    def get(self, request: Request, org: str, name: str) -> Response:
        """How many replicas there are to be, and why."""
        return Response(ScalingOut(scaling_of(selectors.get_deployment(self.org, name))).data)

    @extend_schema(operation_id="change_deployment_scaling", request=ScalingIn, responses=ScalingOut)
    def patch(self, request: Request, org: str, name: str) -> Response:
        """How it is scaled between its bounds. It holds from the next decision on, within two seconds."""
        asked = read_body(ScalingIn, request)
        found = set_wishes(selectors.get_deployment(self.org, name), cast(User, request.user), asked)
        return Response(ScalingOut(scaling_of(found)).data)


class ScalingDecisionsView(OrgView):
    actions = {"GET": Action.DEPLOYMENTS_READ}

    @extend_schema(operation_id="list_scaling_decisions", responses=page_of(ScalingDecisionOut), parameters=[PageQuery])
    def get(self, request: Request, org: str, name: str) -> Response:
        """Newest first: each change of the number, or of the reason for it."""
        return page(request, decisions_of(selectors.get_deployment(self.org, name)), ScalingDecisionOut)


class PeaksView(OrgView):
    actions = {"PUT": Action.DEPLOYMENTS_WRITE}

    @extend_schema(operation_id="set_deployment_peaks", request=PeaksIn, responses=ScalingOut)
    def put(self, request: Request, org: str, name: str) -> Response:
        """Declares all peaks anew. Replicas are ready when a peak starts; the bounds still hold."""
        asked = read_body(PeaksIn, request)
        found = set_peaks(
            selectors.get_deployment(self.org, name), cast(User, request.user), [_peak(each) for each in asked["peaks"]]
        )
        return Response(ScalingOut(scaling_of(found)).data)


def _peak(given: dict[str, Any]) -> Peak:
    return Peak(
        start=given["start"].timestamp(),
        end=given["end"].timestamp(),
        every=EVERY[given["every"]],
        replicas=given.get("replicas"),
        requests_per_second=given.get("requests_per_second"),
    )


_ONE = "orgs/<slug:org>/deployments/<str:name>"
urlpatterns = [
    path(f"{_ONE}/scaling", ScalingView.as_view()),
    path(f"{_ONE}/scaling/decisions", ScalingDecisionsView.as_view()),
    path(f"{_ONE}/scaling/peaks", PeaksView.as_view()),
]
