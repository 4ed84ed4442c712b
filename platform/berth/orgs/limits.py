"""How fast something may be used: the columns and the checks that organisations, members, keys and deployments share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import models
from rest_framework import serializers

from berth.web.serializers import StrictSerializer
from berth_gateway.contract import Limits

MOST = 10**12  # of anything: far above what machines do, far below what scripts count exactly
NAMES = ("rpm", "tpm", "concurrency")


class Limited(models.Model):
    """Null means no limit of its own; every limit that applies to a request holds."""

    limit_rpm = models.PositiveBigIntegerField(null=True, blank=True)  # requests in any minute
    limit_tpm = models.PositiveBigIntegerField(null=True, blank=True)  # tokens in any minute
    limit_concurrency = models.PositiveBigIntegerField(null=True, blank=True)  # requests at one moment

    class Meta:
        abstract = True

    @property
    def limits(self) -> dict[str, int | None]:
        return {"rpm": self.limit_rpm, "tpm": self.limit_tpm, "concurrency": self.limit_concurrency}

    def set_limits(self, limits: Mapping[str, int | None]) -> list[str]:
        """Names that are absent stay. Returns the fields to save."""
        for name, value in limits.items():
            setattr(self, f"limit_{name}", value)
        return [f"limit_{name}" for name in limits]


LIMIT_FIELDS = tuple(f"limit_{name}" for name in NAMES)


def for_gateways(rpm: int | None, tpm: int | None, concurrency: int | None) -> Limits | None:
    """As the snapshot carries them; None when there is none."""
    if rpm is None and tpm is None and concurrency is None:
        return None
    return Limits(rpm=rpm, tpm=tpm, concurrency=concurrency)


def _whole(help_text: str) -> serializers.IntegerField:
    return serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=MOST, help_text=f"{help_text}; null: no limit"
    )


class LimitsIn(StrictSerializer):
    rpm = _whole("Requests in any minute")
    tpm = _whole("Tokens in any minute")
    concurrency = _whole("Requests at one moment")


class LimitsOut(serializers.Serializer[Any]):
    rpm = serializers.IntegerField(allow_null=True)
    tpm = serializers.IntegerField(allow_null=True)
    concurrency = serializers.IntegerField(allow_null=True)
