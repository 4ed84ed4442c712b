"""What the routes of this room read and answer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from berth.deployments.measured import FIRST, MEMORY, SPEED
from berth.deployments.models import Deployment, Desired, Event, PlanCheck, Replica, Revision, State
from berth.deployments.outlook import upcoming, usual
from berth.deployments.plan_ids import MOST as PLAN_ID_LENGTH
from berth.deployments.plan_serializers import NeedsIn, PinsIn, PlanIn, PlanOut, replicas_field
from berth.deployments.replicas import wanted_replicas
from berth.deployments.rollout_api import RolloutIn, RolloutOut
from berth.deployments.rollouts import latest_rollout
from berth.deployments.selectors import adapters_beside, checks_of, shown_replicas
from berth.orgs.limits import LimitsIn, LimitsOut
from berth.orgs.serializers import UserOut
from berth.planner.learning import LEAST
from berth.web.serializers import StrictSerializer

# Bodies


class DeployIn(PlanIn):
    name = serializers.CharField(required=False, max_length=63, help_text="Absent: as the model")
    plan_id = serializers.CharField(
        required=False,
        max_length=PLAN_ID_LENGTH,
        help_text="Of the plan that was seen. If it is older than 15 minutes or another now: 409 plan.stale with the differences",
    )


def bound(help_text: str) -> serializers.IntegerField:
    return serializers.IntegerField(
        required=False, allow_null=True, min_value=0, help_text=f"{help_text}; null: the revision's number of replicas"
    )


class ChangeIn(StrictSerializer):
    """What is absent stays. `needs` and `pins` are replaced as a whole. `limits`, `sleep_after_seconds`, `hold_seconds`,
    `min_replicas`, `max_replicas` and `priority` make no new revision."""

    version = serializers.IntegerField(required=False, min_value=1)
    needs = NeedsIn(required=False)
    pins = PinsIn(required=False)
    replicas = replicas_field()
    rollout = RolloutIn(required=False)
    reason = serializers.CharField(required=False, max_length=200, help_text="Why; shown with the revision")
    plan_id = serializers.CharField(
        required=False,
        max_length=PLAN_ID_LENGTH,
        help_text="Of the plan that was seen for exactly this model version, needs, pins and replicas; as when deploying",
    )
    limits = LimitsIn(required=False)
    sleep_after_seconds = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=30 * 86_400,
        help_text="Without a request for so long it sleeps; null: never",
    )
    hold_seconds = serializers.IntegerField(
        required=False, min_value=0, max_value=3600, help_text="How long a request waits for it to wake or start"
    )
    min_replicas = bound("The least replicas that scaling may ask for; 0: it may sleep")
    max_replicas = bound("The most replicas that scaling may ask for")
    priority = serializers.IntegerField(
        required=False,
        min_value=-100,
        max_value=100,
        help_text="Among the organisation's own deployments: who gets room first, and who makes room when there is too little",
    )


class LogQuery(StrictSerializer):
    replica = serializers.CharField(required=False, default="", max_length=96, help_text="Absent: the newest")
    after = serializers.IntegerField(required=False, default=0, min_value=0)
    limit = serializers.IntegerField(required=False, default=200, min_value=1, max_value=1000)


# Deployments


class RevisionOut(serializers.ModelSerializer[Revision]):
    quantization = serializers.SerializerMethodField()
    needs = serializers.DictField()
    pins = serializers.DictField(source="plan.pins", default=dict)
    plan = PlanOut()
    created_by = UserOut(allow_null=True, help_text="null: Berth itself")

    class Meta:
        model = Revision
        fields = [
            "number", "engine", "quantization", "tier", "context_length", "slots", "threads", "memory", "replicas", "needs",
            "pins", "plan", "gpus", "reason", "created_by", "created_at",
        ]  # fmt: skip

    @extend_schema_field(serializers.CharField(help_text="Of its files, also while they are being made"))
    def get_quantization(self, revision: Revision) -> str:
        choice = revision.plan.get("choice") or {}
        return choice["artefact"]["quantization"] if choice.get("made_of") else revision.artefact.quantization


class PhaseOut(serializers.Serializer[Any]):
    phase = serializers.CharField()
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    done = serializers.IntegerField(allow_null=True, help_text="Bytes so far, where known")
    total = serializers.IntegerField(allow_null=True)


class ReplicaOut(serializers.ModelSerializer[Replica]):
    revision = serializers.IntegerField(source="revision.number")
    phases = serializers.SerializerMethodField()

    class Meta:
        model = Replica
        fields = [
            "id", "name", "ordinal", "revision", "phase", "phases", "started_at", "ready_at", "ended_at", "reason", "message",
        ]  # fmt: skip

    @extend_schema_field(PhaseOut(many=True))
    def get_phases(self, replica: Replica) -> list[dict[str, Any]]:
        return [
            {
                "phase": timing["phase"],
                "started_at": instant(timing["started_at"]),
                "ended_at": instant(timing.get("ended_at")),
                "done": timing.get("done"),
                "total": timing.get("total"),
            }
            for timing in replica.phases
        ]


class NextOut(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()
    usual_seconds = serializers.FloatField(allow_null=True)


class PlanCheckOut(serializers.ModelSerializer[PlanCheck]):
    """Planned beside measured."""

    metric = serializers.ChoiceField(choices=[SPEED, FIRST, MEMORY])
    unit = serializers.SerializerMethodField()
    planned = serializers.FloatField(allow_null=True, help_text="As the revision's plan says; null: nothing")
    expected = serializers.FloatField(
        allow_null=True, help_text="For the load and lengths that were measured, without corrections"
    )
    measured = serializers.FloatField(help_text="Median; of memory the most that a replica was seen to hold")
    n = serializers.IntegerField(source="count", help_text="Requests it is the median of; of memory replicas")
    enough = serializers.SerializerMethodField()

    class Meta:
        model = PlanCheck
        fields = [
            "metric", "unit", "planned", "expected", "measured", "n", "enough", "load", "window_start", "window_end", "updated_at",
        ]  # fmt: skip

    @extend_schema_field(serializers.CharField(help_text="tokens/s, ms or bytes"))
    def get_unit(self, check: PlanCheck) -> str:
        return {SPEED: "tokens/s", MEMORY: "bytes"}.get(check.metric, "ms")

    @extend_schema_field(serializers.BooleanField(help_text="Whether n is enough to correct plans by"))
    def get_enough(self, check: PlanCheck) -> bool:
        return check.metric == MEMORY or check.count >= LEAST


class DeploymentOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    model_id = serializers.CharField(help_text="What clients put into `model`")
    model = serializers.CharField()
    version = serializers.IntegerField()
    state = serializers.ChoiceField(choices=State.choices)
    state_since = serializers.DateTimeField()
    desired = serializers.ChoiceField(choices=Desired.choices)
    reason = serializers.CharField(help_text="Stable code, where there is something to explain")
    message = serializers.CharField()
    revision = RevisionOut()
    replicas = ReplicaOut(many=True)
    usual = serializers.DictField(child=serializers.FloatField(), help_text="Seconds of each phase of a start")
    usual_basis = serializers.ChoiceField(choices=["measured", "estimated"])
    next = NextOut(allow_null=True)
    created_at = serializers.DateTimeField()
    limits = LimitsOut()
    planned_against_measured = PlanCheckOut(many=True, help_text="Of the wanted revision; empty until it has served")
    sleep_after_seconds = serializers.IntegerField(allow_null=True, help_text="null: it never sleeps")
    hold_seconds = serializers.IntegerField()
    rollout = RolloutOut(allow_null=True, help_text="The latest; null: there was none yet")
    stable = serializers.IntegerField(allow_null=True, help_text="Number of the last revision that was good")
    wanted_replicas = serializers.IntegerField(help_text="How many are to answer now")
    min_replicas = serializers.IntegerField(allow_null=True, help_text="null: the revision's number of replicas")
    max_replicas = serializers.IntegerField(allow_null=True, help_text="null: the revision's number of replicas")
    priority = serializers.IntegerField()
    beside = serializers.CharField(
        allow_null=True, help_text="Of an adapter: the deployment whose replicas serve it; null: it has its own"
    )
    adapters = serializers.ListField(
        child=serializers.CharField(), help_text="Names of the adapters that its replicas serve too"
    )

    def to_representation(self, instance: Deployment) -> dict[str, Any]:
        revision = instance.revision
        if revision is None:  # left out by every query
            raise ValueError("a deployment without a revision")
        # An adapter is as its base's replicas are.
        base = instance.beside.revision if instance.beside is not None else None
        replicas, times = shown_replicas(instance), usual(base or revision)
        coming = upcoming(instance, replicas, times)
        content = {
            "id": instance.pk,
            "name": instance.name,
            "model_id": f"{instance.org.slug}/{instance.name}",
            "model": revision.version.model.name,
            "version": revision.version.number,
            "state": instance.state,
            "state_since": instance.state_since,
            "desired": instance.desired,
            "reason": instance.reason,
            "message": instance.message,
            "revision": revision,
            "replicas": replicas,
            "usual": times.seconds,
            "usual_basis": times.basis,
            "next": None if coming is None else msgspec.to_builtins(coming),
            "created_at": instance.created_at,
            "limits": instance.limits,
            "planned_against_measured": checks_of(revision),
            "sleep_after_seconds": instance.sleep_after_seconds,
            "hold_seconds": instance.hold_seconds,
            "rollout": latest_rollout(instance),
            "stable": None if instance.stable is None else instance.stable.number,
            "wanted_replicas": wanted_replicas(instance, revision),
            "min_replicas": instance.min_replicas,
            "max_replicas": instance.max_replicas,
            "priority": instance.priority,
            "beside": None if instance.beside is None else instance.beside.name,
            "adapters": adapters_beside(instance),
        }
        shown: dict[str, Any] = super().to_representation(content)
        return shown


class EventOut(serializers.ModelSerializer[Event]):
    actor = UserOut(allow_null=True, help_text="null: Berth itself")
    at = serializers.DateTimeField(source="created_at")
    data = serializers.DictField()  # type: ignore[assignment]  # the answer's field is called so; DRF's own property is for input

    class Meta:
        model = Event
        fields = ["id", "kind", "data", "actor", "at"]


class LogLineOut(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    at = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]
    text = serializers.CharField(allow_null=True)
    withheld = serializers.IntegerField(allow_null=True, help_text="Bytes that were dropped unread")


class LogPageOut(serializers.Serializer[Any]):
    items = LogLineOut(many=True)
    next_after = serializers.IntegerField()
    more = serializers.BooleanField()


def instant(seconds: float | None) -> str | None:
    """Unix seconds as the API writes instants."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
