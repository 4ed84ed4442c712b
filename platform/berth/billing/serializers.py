"""The forms of what billing answers. Exact amounts are decimal strings, statement amounts integers of a millionth."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from berth.billing.models import PriceVersion, Unit
from berth.billing.rating import text
from berth_gateway.contract import Outcome


@extend_schema_field(OpenApiTypes.STR)
class ExactField(serializers.Field[Any, Any, str, Any]):
    """Twelve places, never an exponent."""

    def to_representation(self, value: Any) -> str:
        return text(value)


class NamedOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField(allow_null=True)


class SumsOut(serializers.Serializer[Any]):
    requests = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField(help_text="Includes cached ones")
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    amount = serializers.CharField(allow_null=True, help_text="Exact; null without the permission billing.read")


class UsageGroupOut(SumsOut):
    key = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment]  # a field's own label is not used here


class ReconciliationOut(serializers.Serializer[Any]):
    period = serializers.CharField()
    difference_micro = serializers.IntegerField()


class UsageOut(serializers.Serializer[Any]):
    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return super().get_fields() | {"from": serializers.DateTimeField()}  # a word that Python keeps for itself

    to = serializers.DateTimeField()
    time_zone = serializers.CharField()
    currency = serializers.CharField()
    as_of = serializers.DateTimeField()
    behind_seconds = serializers.FloatField(allow_null=True)
    groups = UsageGroupOut(many=True)
    totals = SumsOut()
    reconciles_with = ReconciliationOut(allow_null=True)


class UsageEventOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    accepted_at = serializers.DateTimeField()
    deployment = NamedOut()
    key = NamedOut()
    endpoint = serializers.CharField()
    stream = serializers.BooleanField()
    outcome = serializers.ChoiceField(choices=[outcome.value for outcome in Outcome])
    status = serializers.IntegerField()
    counted_by = serializers.CharField()
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    reasoning_tokens = serializers.IntegerField()
    first_token_ms = serializers.FloatField(allow_null=True)
    duration_ms = serializers.FloatField()
    amount = serializers.CharField(
        allow_null=True, help_text="Exact; null while not rated, and without the permission billing.read"
    )


class LineEventOut(UsageEventOut):
    """`amount` and `quantity` are what this event put on the line."""

    quantity = serializers.IntegerField()
    correction = serializers.BooleanField()


class StatementOut(serializers.Serializer[Any]):
    period = serializers.CharField()
    status = serializers.ChoiceField(choices=["open", "closed"])
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    currency = serializers.CharField()
    total_micro = serializers.IntegerField()
    content_hash = serializers.CharField(allow_null=True)


class StatementLineOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    deployment = NamedOut()
    unit = serializers.ChoiceField(choices=Unit.values)
    price_version = serializers.IntegerField()
    unit_price = serializers.CharField()
    quantity = serializers.IntegerField()
    exact = serializers.CharField()
    amount_micro = serializers.IntegerField()


class StatementDetailOut(StatementOut):
    lines = StatementLineOut(many=True)


class PriceOut(serializers.ModelSerializer[PriceVersion]):
    scope = serializers.SerializerMethodField(help_text="Whom it is for")
    current = serializers.SerializerMethodField(help_text="The newest of its scope that has begun")
    input_token = ExactField()
    cached_token = ExactField()
    output_token = ExactField()

    class Meta:
        model = PriceVersion
        fields = [
            "id", "number", "scope", "deployment_id", "currency", "input_token", "cached_token", "output_token", "valid_from",
            "current",
        ]  # fmt: skip

    def get_scope(self, version: PriceVersion) -> str:
        if version.deployment_id is not None:
            return "deployment"
        return "platform" if version.org_id is None else "organisation"

    def get_current(self, version: PriceVersion) -> bool:
        return version.pk in self.context["current"]
