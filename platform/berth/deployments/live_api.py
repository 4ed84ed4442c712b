"""Routes of what is going on now: a deployment's status once and as a stream, and the organisation's room."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponseBase
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from berth.deployments import capacity, quotas, selectors
from berth.deployments.history import TOPIC
from berth.deployments.models import Quota, State
from berth.deployments.rollout_api import RolloutOut
from berth.deployments.scaling_api import ScalingDecisionOut
from berth.deployments.serializers import NextOut, PlanCheckOut
from berth.deployments.status import status_of
from berth.orgs.events import Focus, stream_events
from berth.orgs.permissions import Action
from berth.orgs.views import OrgView
from berth.web.auth import Operator
from berth.web.serializers import StrictSerializer, read_body


class QueueOut(serializers.Serializer[Any]):
    position = serializers.IntegerField(help_text="1 is the first")
    length = serializers.IntegerField()
    usual_seconds = serializers.FloatField(allow_null=True, help_text="How long others waited; null: nobody has yet")


class StartOut(serializers.Serializer[Any]):
    replica = serializers.CharField()
    revision = serializers.IntegerField()
    phase = serializers.CharField()
    phase_since = serializers.DateTimeField()
    done = serializers.IntegerField(allow_null=True, help_text="Bytes so far, where known")
    total = serializers.IntegerField(allow_null=True)
    percent = serializers.IntegerField(allow_null=True)
    usual_seconds = serializers.FloatField(allow_null=True, help_text="Of this phase")
    usually_ready_in_seconds = serializers.FloatField()


class ScaledOut(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    before = serializers.IntegerField()
    after = serializers.IntegerField()
    reason = serializers.CharField()


class PassedOut(serializers.Serializer[Any]):
    """A quantization that was made or tried, and why it is not used."""

    quantization = serializers.CharField()
    reason = serializers.CharField()
    message = serializers.CharField()


class PreparationOut(serializers.Serializer[Any]):
    """Files that are made before it can run with them."""

    state = serializers.ChoiceField(choices=["open", "failed"])
    quantization = serializers.CharField()
    step = serializers.ChoiceField(choices=["waiting", "queued", "converting", "measuring", "storing"])
    percent = serializers.IntegerField(allow_null=True, help_text="Of the step")
    seconds_left = serializers.FloatField(allow_null=True, help_text="Of the step")
    passed = PassedOut(many=True)
    code = serializers.CharField(help_text="Why it failed")
    message = serializers.CharField()


class StatusOut(serializers.Serializer[Any]):
    state = serializers.ChoiceField(choices=State.choices)
    state_since = serializers.DateTimeField()
    reason = serializers.CharField()
    message = serializers.CharField()
    next = NextOut(allow_null=True)
    queue = QueueOut(allow_null=True, help_text="While it waits for room")
    starts = StartOut(many=True, help_text="Replicas on their way")
    ready = serializers.IntegerField()
    wanted = serializers.IntegerField()
    least = serializers.IntegerField()
    most = serializers.IntegerField()
    preparation = PreparationOut(allow_null=True, help_text="null: all files are there")
    rollout = RolloutOut(allow_null=True)
    scaling = ScaledOut(many=True, help_text="Latest changes of the number of replicas, newest first")
    decision = ScalingDecisionOut(allow_null=True, help_text="The latest one of scaling; null: nothing was decided yet")
    planned_against_measured = PlanCheckOut(many=True)


class StatusView(OrgView):
    actions = {"GET": Action.DEPLOYMENTS_READ}

    @extend_schema(operation_id="get_deployment_status", responses=StatusOut)
    def get(self, request: Request, org: str, name: str) -> Response:
        """What it does now, how far that is and how long it usually takes. `…/live` streams the same."""
        return Response(StatusOut(status_of(selectors.get_deployment(self.org, name))).data)


async def live(request: HttpRequest, org: str, name: str) -> HttpResponseBase:
    """Server-sent events of one deployment: `status` at once and whenever it changes, and `deployments` as in the organisation's
    stream."""

    def show(org_id: UUID) -> dict[str, Any]:
        return dict(StatusOut(status_of(selectors.get_deployment(org_id, name))).data)

    return await stream_events(request, org, Focus(TOPIC, name, show))


live.actions = {"GET": Action.DEPLOYMENTS_READ}  # type: ignore[attr-defined]  # as on every view of an organisation


def _most(help_text: str) -> serializers.IntegerField:
    return serializers.IntegerField(
        required=False, allow_null=True, min_value=0, max_value=10**15, help_text=f"{help_text}; null: no limit"
    )


class CapacityLimitsIn(StrictSerializer):
    """What is absent stays."""

    replicas = _most("Replicas together")
    gpus = _most("GPUs together")
    memory = _most("Bytes that were planned for replicas together")


class RegionsIn(StrictSerializer):
    regions = serializers.ListField(
        child=serializers.CharField(max_length=63), max_length=100, allow_null=True, help_text="null: anywhere"
    )


class CapacityLimitsOut(serializers.ModelSerializer[Quota]):
    regions = serializers.ListField(
        child=serializers.CharField(), allow_null=True, help_text="Where replicas may run; null: anywhere"
    )

    class Meta:
        model = Quota
        fields = ["replicas", "gpus", "memory", "regions"]


class UsedOut(serializers.Serializer[Any]):
    replicas = serializers.IntegerField()
    gpus = serializers.IntegerField()
    memory = serializers.IntegerField()


class CapacityOut(serializers.Serializer[Any]):
    quota = CapacityLimitsOut()
    used = UsedOut()


class CapacityView(OrgView):
    actions = {"GET": Action.DEPLOYMENTS_READ, "PATCH": Action.ORG_UPDATE}

    @extend_schema(operation_id="get_capacity", responses=CapacityOut)
    def get(self, request: Request, org: str) -> Response:
        """What the organisation's replicas hold, and the most they may."""
        return Response(self._shown())

    @extend_schema(operation_id="set_regions", request=RegionsIn, responses=CapacityOut)
    def patch(self, request: Request, org: str) -> Response:
        """The regions in which replicas may be started from now on; what runs goes on until it is replaced."""
        quotas.set_regions(self.org, **read_body(RegionsIn, request))
        return Response(self._shown())

    def _shown(self) -> Any:
        return CapacityOut({"quota": quotas.quota_of(self.org), "used": capacity.used_by(self.org.pk)}).data


class QuotaView(APIView):
    permission_classes = (Operator,)

    @extend_schema(operation_id="set_quota", request=CapacityLimitsIn, responses=CapacityLimitsOut)
    def patch(self, request: Request, org: str) -> Response:
        """The most that an organisation's replicas may hold together. What runs already goes on."""
        return Response(CapacityLimitsOut(quotas.set_quota(org, **read_body(CapacityLimitsIn, request))).data)


_ONE = "orgs/<slug:org>/deployments/<str:name>"
urlpatterns = [
    path(f"{_ONE}/status", StatusView.as_view()),
    path(f"{_ONE}/live", live),
    path("orgs/<slug:org>/capacity", CapacityView.as_view()),
    path("operator/orgs/<slug:org>/quota", QuotaView.as_view()),
]
