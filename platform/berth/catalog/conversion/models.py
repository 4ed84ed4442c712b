"""Artefacts on their way out of others."""

from __future__ import annotations

from django.db import models

from berth.orgs.models import User
from berth.orgs.tenancy import OrgOwned


class ConversionState(models.TextChoices):
    QUEUED = "queued"
    CONVERTING = "converting"
    MEASURING = "measuring"  # its quality, against what it was made of
    STORING = "storing"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"  # made, measured, and too bad to be used
    CANCELLED = "cancelled"


FINAL = (ConversionState.DONE, ConversionState.FAILED, ConversionState.REFUSED, ConversionState.CANCELLED)


class Conversion(OrgOwned):
    """One artefact to be made. The machine that works on it holds the lease; a lease that ran out is anybody's."""

    source = models.ForeignKey("catalog.Artefact", on_delete=models.CASCADE, related_name="conversions")
    format = models.CharField(max_length=16)  # "gguf"
    quantization = models.CharField(max_length=16)  # "Q4_K_M"
    state = models.CharField(max_length=16, choices=ConversionState, default=ConversionState.QUEUED)
    step = models.CharField(max_length=16, blank=True)  # of the running program: "quantizing", "hashing" …
    done = models.BigIntegerField(default=0)  # of `total`, in the step's own unit
    total = models.BigIntegerField(default=0)
    rate = models.FloatField(null=True)  # units a second, since the step began
    step_began_at = models.DateTimeField(null=True)
    fallbacks = models.JSONField(default=list)  # [{wanted, given, row, tensors, examples}]
    requantized = models.BooleanField(default=False)
    quality = models.JSONField(null=True)  # see Artefact.quality
    code = models.CharField(max_length=64, blank=True)  # why it failed or was refused
    message = models.CharField(max_length=600, blank=True)
    artefact = models.ForeignKey("catalog.Artefact", null=True, on_delete=models.SET_NULL, related_name="+")
    failures = models.PositiveIntegerField(default=0)  # in a row
    cancelled_at = models.DateTimeField(null=True)  # asked for
    finished_at = models.DateTimeField(null=True)
    lease_machine = models.CharField(max_length=128, blank=True)
    lease_until = models.DateTimeField(null=True)
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["source", "format", "quantization"],
                condition=~models.Q(state__in=["done", "failed", "refused", "cancelled"]),
                name="conversion_running_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.format} {self.quantization}"

    @property
    def final(self) -> bool:
        return self.state in FINAL


class ConversionSample(OrgOwned):
    """A text of the organisation's own to measure with, sealed; it goes when its conversion ends, however it ends."""

    conversion = models.OneToOneField(Conversion, on_delete=models.CASCADE, related_name="sample")
    sealed = models.BinaryField()

    def __str__(self) -> str:
        return f"sample of {self.conversion_id}"
