"""What is asked of the planner over HTTP, and how it answers."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from berth.planner.needs import MAX_CONCURRENCY, MAX_CONTEXT, MAX_LICENCES, MAX_REPLICAS, MIN_CONTEXT, Quality
from berth.web.serializers import StrictSerializer

# Bodies


class NeedsIn(StrictSerializer):
    context_length = serializers.IntegerField(
        required=False, min_value=MIN_CONTEXT, max_value=MAX_CONTEXT, help_text="Tokens, prompt and completion together"
    )
    concurrency = serializers.IntegerField(
        required=False, min_value=1, max_value=MAX_CONCURRENCY, help_text="Requests at the same time"
    )
    quality = serializers.ChoiceField(required=False, choices=[quality.value for quality in Quality])
    max_price_per_hour = serializers.DecimalField(required=False, max_digits=20, decimal_places=12, min_value=0)
    tokens_per_second = serializers.FloatField(required=False, min_value=0.001, help_text="For each request")
    ttft_ms = serializers.FloatField(
        required=False,
        min_value=1,
        max_value=3_600_000,
        help_text="To the first token of a prompt of 512 tokens; scaling keeps to it",
    )
    licences = serializers.ListField(
        required=False,
        max_length=MAX_LICENCES,
        child=serializers.CharField(max_length=80),
        help_text="Allowed licences of the model, as SPDX names them; none named: all",
    )


class PinsIn(StrictSerializer):
    artefact_id = serializers.UUIDField(required=False)
    quantization = serializers.CharField(
        required=False, max_length=31, help_text="Q4_K_M; made first where it is not there and can be"
    )
    engine = serializers.CharField(required=False, max_length=16)
    tier = serializers.CharField(required=False, max_length=48)
    context_length = serializers.IntegerField(required=False, min_value=MIN_CONTEXT, max_value=MAX_CONTEXT)
    slots = serializers.IntegerField(required=False, min_value=1, max_value=MAX_CONCURRENCY)

    def validate_artefact_id(self, value: Any) -> str:
        return str(value)


def replicas_field() -> serializers.IntegerField:
    return serializers.IntegerField(required=False, min_value=1, max_value=MAX_REPLICAS)


class PlanIn(StrictSerializer):
    model = serializers.CharField(max_length=63)
    version = serializers.IntegerField(required=False, min_value=1, help_text="Absent: the newest")
    needs = NeedsIn(required=False)
    pins = PinsIn(required=False)
    replicas = replicas_field()
    beside = serializers.CharField(
        required=False,
        max_length=63,
        allow_blank=True,
        help_text="Of an adapter: the deployment of its base whose replicas are to serve it too, with that one's needs, pins and "
        "replicas; empty: on replicas of its own. Absent: beside one, if there is one and nothing is pinned",
    )


class SurveyIn(StrictSerializer):
    model = serializers.CharField(max_length=63)
    version = serializers.IntegerField(required=False, min_value=1, help_text="Absent: the newest")
    demand = serializers.DictField(
        required=False, help_text="In people's words: users, think_seconds, reply_tokens … (docs/planner.md)"
    )
    pins = serializers.DictField(required=False, help_text="engine, scheme, tier, devices, kv_bits")


class PlanMessageOut(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()
    params = serializers.DictField()


class AlternativeOut(serializers.Serializer[Any]):
    """Money as decimal strings in US dollars."""

    label = serializers.CharField()  # type: ignore[assignment]  # the answer's field is called so
    replicas_needed = serializers.IntegerField()
    per_hour = serializers.CharField(allow_null=True, help_text="Of all replicas; null: no price is known")
    per_interaction = serializers.CharField(allow_null=True)
    ttft = serializers.FloatField(help_text="Milliseconds, median")
    speed = serializers.FloatField(help_text="Tokens a second for each user")
    loss = serializers.FloatField(help_text="Of a benchmark's score, from 0 to 1")


class TurnedOut(serializers.Serializer[Any]):
    option = serializers.CharField()
    reason_code = serializers.CharField()
    message = serializers.CharField()
    params = serializers.DictField()
    forcible = serializers.BooleanField(help_text="Whether it would run at all: only wishes speak against it")


class RemedyOut(serializers.Serializer[Any]):
    change = PlanMessageOut()
    plan = AlternativeOut(help_text="What the change makes possible")


class SurveyOut(serializers.Serializer[Any]):
    """docs/planner.md says what each part holds."""

    fits = serializers.BooleanField()
    currency = serializers.CharField()
    considered = serializers.IntegerField(help_text="Options that were weighed")
    demand = serializers.DictField()
    assumed = serializers.ListField(child=serializers.CharField())
    choice = serializers.DictField(allow_null=True)
    alternatives = AlternativeOut(many=True, help_text="None of which another beats in everything")
    rejected = TurnedOut(many=True, help_text="Nearest first, with the first reason each")
    pins = serializers.ListField(child=serializers.DictField(), help_text="What each pin costs")
    nearest = RemedyOut(many=True, help_text="When nothing fits: what would have to change")


# Plans


class RejectedOut(PlanMessageOut):
    engine = serializers.CharField()
    artefact_id = serializers.UUIDField(allow_null=True, help_text="null: it would have to be made first")
    quantization = serializers.CharField()
    tier = serializers.CharField()


class EstimateOut(serializers.Serializer[Any]):
    value = serializers.FloatField()
    low = serializers.FloatField()
    high = serializers.FloatField()
    basis = serializers.CharField()


class PredictedOut(serializers.Serializer[Any]):
    tokens_per_second = EstimateOut(allow_null=True, help_text="For each of the concurrent requests")
    ttft_ms = EstimateOut(
        allow_null=True, default=None, help_text="One request alone with 512 prompt tokens; null: not known"
    )


class MemoryOut(serializers.Serializer[Any]):
    """Bytes of one replica."""

    weights = serializers.IntegerField()
    kv = serializers.IntegerField()
    overhead = serializers.IntegerField()
    total = serializers.IntegerField()
    available = serializers.IntegerField()


class PlannedArtefactOut(serializers.Serializer[Any]):
    id = serializers.UUIDField(allow_null=True, help_text="null: it is made first")
    quantization = serializers.CharField()
    size = serializers.IntegerField(help_text="Bytes; of one that is made first as it is expected to be")


class LayoutOut(serializers.Serializer[Any]):
    """How a replica lies on its devices."""

    devices = serializers.IntegerField(help_text="GPUs that are the replica's alone")
    tensor_parallel = serializers.IntegerField()
    pipeline_parallel = serializers.IntegerField()
    kv_dtype = serializers.CharField(allow_null=True, help_text="Of the cache; null: as the weights")


class ChoiceOut(serializers.Serializer[Any]):
    engine = serializers.CharField()
    artefact = PlannedArtefactOut()
    made_of = serializers.UUIDField(
        allow_null=True,
        default=None,
        help_text="The artefact that its files are made of, and measured, before it starts; null: they are there",
    )
    tier = serializers.CharField()
    context_length = serializers.IntegerField()
    slots = serializers.IntegerField()
    threads = serializers.IntegerField()
    replicas = serializers.IntegerField()
    memory = MemoryOut()
    predicted = PredictedOut()
    price_per_hour = serializers.CharField(allow_null=True, help_text="Exact decimal, for all replicas")
    currency = serializers.CharField()
    reasons = PlanMessageOut(many=True)
    layout = LayoutOut(allow_null=True, default=None, help_text="null: of a plan before there were any")


class PlanOut(serializers.Serializer[Any]):
    fits = serializers.BooleanField()
    choice = ChoiceOut(allow_null=True)
    rejected = RejectedOut(many=True)
    changes = PlanMessageOut(many=True)


class ProposalOut(PlanOut):
    plan_id = serializers.CharField(
        allow_null=True,
        help_text="Deploy with it within 15 minutes; null when nothing fits, and for an adapter beside a deployment",
    )
    beside = serializers.CharField(
        allow_null=True,
        help_text="Of an adapter: the deployment whose replicas would serve it; null: it would have its own",
    )


class PlanDifferenceOut(serializers.Serializer[Any]):
    field = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class BetterPlanOut(serializers.Serializer[Any]):
    """What would be planned today for what a deployment asks for, where that is another thing than what it has."""

    better = serializers.BooleanField()
    differences = PlanDifferenceOut(many=True)
    why = PlanMessageOut(allow_null=True, help_text="Why the plan does not choose what the deployment has")
    plan = PlanOut(allow_null=True)
    plan_id = serializers.CharField(
        allow_null=True, help_text="Change the deployment with it alone to take the plan, within 15 minutes"
    )
