"""Routes of rollouts: what is under way, promote, hold, go on, go back. And their shapes."""

from __future__ import annotations

from typing import Any, cast

from django.urls import path
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from berth.deployments import rollouts, selectors
from berth.deployments.models import Deployment, Rollout, Status, Strategy
from berth.orgs.models import User
from berth.orgs.permissions import Action
from berth.orgs.serializers import UserOut
from berth.orgs.views import OrgView
from berth.web.pagination import page, page_of
from berth.web.serializers import NoBody, PageQuery, StrictSerializer, read_body


class MarginsIn(StrictSerializer):
    failed = serializers.FloatField(
        required=False, min_value=0, max_value=100, help_text="Percentage points more of failed requests"
    )
    slower = serializers.FloatField(
        required=False, min_value=1, max_value=1000, help_text="Times the old median time to the first token"
    )
    requests = serializers.IntegerField(
        required=False, min_value=1, max_value=500, help_text="Of the new revision, before anything is concluded"
    )


class RolloutIn(StrictSerializer):
    """How a new revision takes over. Absent: one replica after the other, watched for two minutes, back by itself if it is worse."""

    strategy = serializers.ChoiceField(required=False, choices=Strategy.choices)
    steps = serializers.ListField(
        required=False,
        child=serializers.IntegerField(min_value=1, max_value=100),
        max_length=20,
        help_text="canary: percents of the requests, rising",
    )
    hold_seconds = serializers.IntegerField(
        required=False, min_value=0, max_value=7 * 86_400, help_text="Of each step; rolling: of watching"
    )
    shadow_percent = serializers.IntegerField(
        required=False, min_value=1, max_value=100, help_text="shadow: of the requests that are copied"
    )
    margins = MarginsIn(required=False)
    automatic = serializers.BooleanField(required=False, help_text="false: nothing goes on or back by itself")

    def validate_steps(self, steps: list[int]) -> list[int]:
        if not steps or sorted(set(steps)) != steps:
            raise serializers.ValidationError("Name at least one step, each above the one before.")
        return steps


class EvidenceOut(serializers.Serializer[Any]):
    requests = serializers.IntegerField()
    failed = serializers.IntegerField()
    first_token_ms = serializers.FloatField(allow_null=True, help_text="Median of streams")
    streams = serializers.IntegerField()


class SidesOut(serializers.Serializer[Any]):
    old = EvidenceOut()
    new = EvidenceOut()


class RolloutOut(serializers.ModelSerializer[Rollout]):
    revision = serializers.IntegerField(source="revision.number")
    base = serializers.IntegerField(
        source="base.number", default=None, allow_null=True, help_text="What it goes back to; null: the first revision"
    )
    strategy = serializers.ChoiceField(choices=Strategy.choices)
    status = serializers.ChoiceField(choices=Status.choices)
    steps = serializers.ListField(child=serializers.IntegerField())
    step = serializers.IntegerField(help_text="Index of the present one; beyond the last: it takes everything")
    measured = serializers.SerializerMethodField()
    margins = MarginsIn()
    created_by = UserOut(allow_null=True)

    class Meta:
        model = Rollout
        fields = [
            "id", "revision", "base", "strategy", "status", "steps", "step", "step_since", "hold_seconds", "shadow_percent",
            "margins", "automatic", "reason", "message", "measured", "created_by", "created_at", "ended_at",
        ]  # fmt: skip

    @extend_schema_field(SidesOut(allow_null=True))
    def get_measured(self, rollout: Rollout) -> dict[str, Any] | None:
        measured: dict[str, Any] | None = rollout.measured or None
        return measured


class PromoteIn(StrictSerializer):
    fully = serializers.BooleanField(required=False, default=False, help_text="All the way, not to the next step only")


class RollbackIn(StrictSerializer):
    number = serializers.IntegerField(
        required=False, min_value=1, help_text="Absent: the revision before this rollout, or the last good one"
    )


class _RolloutView(OrgView):
    actions = {"POST": Action.DEPLOYMENTS_WRITE}

    def found(self, name: str) -> Deployment:
        return selectors.get_deployment(self.org, name)

    def answer(self, deployment: Deployment) -> Response:
        latest = rollouts.latest_rollout(deployment)
        return Response(None if latest is None else RolloutOut(latest).data)


class RolloutsView(OrgView):
    actions = {"GET": Action.DEPLOYMENTS_READ}

    @extend_schema(operation_id="list_rollouts", responses=page_of(RolloutOut), parameters=[PageQuery])
    def get(self, request: Request, org: str, name: str) -> Response:
        """Newest first: how each revision took over, and how that ended."""
        found = selectors.get_deployment(self.org, name)
        return page(request, selectors.rollouts_of(found), RolloutOut)


class PromoteView(_RolloutView):
    @extend_schema(operation_id="promote_rollout", request=PromoteIn, responses=RolloutOut)
    def post(self, request: Request, org: str, name: str) -> Response:
        """A canary goes to its next step; a shadow begins to serve."""
        asked = read_body(PromoteIn, request)
        return self.answer(rollouts.promote(self.found(name), _user(request), fully=asked["fully"]))


class HoldView(_RolloutView):
    @extend_schema(operation_id="hold_rollout", request=NoBody, responses=RolloutOut)
    def post(self, request: Request, org: str, name: str) -> Response:
        """Both revisions stay as they are until somebody goes on or back."""
        read_body(NoBody, request)
        return self.answer(rollouts.hold(self.found(name), _user(request)))


class GoOnView(_RolloutView):
    @extend_schema(operation_id="resume_rollout", request=NoBody, responses=RolloutOut)
    def post(self, request: Request, org: str, name: str) -> Response:
        """After a hold."""
        read_body(NoBody, request)
        return self.answer(rollouts.go_on(self.found(name), _user(request)))


class RollbackView(_RolloutView):
    @extend_schema(operation_id="roll_back", request=RollbackIn, responses=RolloutOut)
    def post(self, request: Request, org: str, name: str) -> Response:
        """To an earlier revision, exactly as it was. No request is dropped: who serves goes on until the others answer."""
        asked = read_body(RollbackIn, request)
        return self.answer(rollouts.roll_back(self.found(name), _user(request), number=asked.get("number")))


def _user(request: Request) -> User:
    return cast(User, request.user)


_ONE = "orgs/<slug:org>/deployments/<str:name>"
urlpatterns = [
    path(f"{_ONE}/rollouts", RolloutsView.as_view()),
    path(f"{_ONE}/rollout/promote", PromoteView.as_view()),
    path(f"{_ONE}/rollout/hold", HoldView.as_view()),
    path(f"{_ONE}/rollout/resume", GoOnView.as_view()),
    path(f"{_ONE}/rollback", RollbackView.as_view()),
]
