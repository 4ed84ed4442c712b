"""The row of a deployment's files being made before it can run with them."""

from __future__ import annotations

from django.db import models

from berth.orgs.models import User
from berth.orgs.tenancy import OrgOwned


class Prepared(models.TextChoices):
    """Of a preparation."""

    OPEN = "open"
    DONE = "done"  # a revision was made of it
    FAILED = "failed"
    CANCELLED = "cancelled"  # something else is wanted


class Preparation(OrgOwned):
    """Files that a deployment needs and that are made first (`preparing.py`), with everything that is wanted when they are there."""

    deployment = models.ForeignKey("deployments.Deployment", on_delete=models.PROTECT, related_name="preparations")
    version = models.ForeignKey("catalog.ModelVersion", on_delete=models.PROTECT, related_name="+")
    quantization = models.CharField(max_length=16)  # the one that is being made
    # null: not begun
    conversion = models.ForeignKey("catalog.Conversion", null=True, on_delete=models.SET_NULL, related_name="+")
    ours = models.BooleanField(default=False)  # the conversion was begun for a deployment: it may stop with it
    needs = models.JSONField()
    pins = models.JSONField()
    replicas = models.PositiveIntegerField()
    rollout = models.JSONField(default=dict)  # as it was asked for
    reason = models.CharField(max_length=200, blank=True)
    passed = models.JSONField(default=list)  # [{quantization, reason, message}]: made or tried, and no good
    state = models.CharField(max_length=16, choices=Prepared, default=Prepared.OPEN)
    code = models.CharField(max_length=64, blank=True)  # why it failed
    message = models.CharField(max_length=600, blank=True)
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["deployment"], condition=models.Q(state="open"), name="preparation_one_open"
            )
        ]

    def __str__(self) -> str:
        return f"{self.quantization} {self.state}"
