"""Usage events as they came from gateways, each exactly once, and how far each gateway has been read."""

from __future__ import annotations

from django.db import models

from berth.orgs.tenancy import OrgOwned


class UsageEvent(OrgOwned):
    """One accepted request. The id is the one the gateway made at admission, so arriving twice changes nothing.

    Foreign ids are plain values: an event outlives what it names. There is no field for text of prompts or completions.
    """

    gateway = models.CharField(max_length=64)
    key_id = models.UUIDField()
    deployment_id = models.UUIDField()
    revision = models.PositiveIntegerField()
    endpoint = models.CharField(max_length=32)
    stream = models.BooleanField()
    accepted_at = models.DateTimeField()
    duration_ms = models.FloatField()
    first_token_ms = models.FloatField(null=True, blank=True)
    outcome = models.CharField(max_length=24)
    status = models.PositiveSmallIntegerField()
    counted_by = models.CharField(max_length=24)
    prompt_tokens = models.PositiveIntegerField()
    cached_tokens = models.PositiveIntegerField()
    completion_tokens = models.PositiveIntegerField()
    reasoning_tokens = models.PositiveIntegerField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(cached_tokens__lte=models.F("prompt_tokens")), name="usage_cached_within_prompt"
            ),
            models.CheckConstraint(
                condition=models.Q(reasoning_tokens__lte=models.F("completion_tokens")), name="usage_reasoning_within"
            ),
        ]
        indexes = [
            models.Index(fields=["org", "accepted_at"], name="usage_by_org_time"),
            models.Index(fields=["deployment_id", "accepted_at"], name="usage_by_deployment_time"),
        ]

    def __str__(self) -> str:
        return str(self.pk)


class PendingEvent(models.Model):
    """A usage event (same id) that is not rated yet. Written in the transaction that stores the event, removed in the one that
    rates it. `held` says why it cannot be rated; it then waits for the operator and holds up nothing else."""

    id = models.UUIDField(primary_key=True, editable=False)
    org = models.ForeignKey("orgs.Organisation", on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    held = models.CharField(max_length=64, blank=True)

    class Meta:
        indexes = [models.Index(fields=["org", "created_at"], name="pending_by_org_time")]

    def __str__(self) -> str:
        return str(self.pk)


class GatewayPosition(models.Model):
    """Up to where a gateway's spool is in this database without a gap."""

    gateway = models.CharField(max_length=64, primary_key=True)
    position = models.BigIntegerField(default=0)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return self.gateway


class RejectedBatch(models.Model):
    """A batch that could not be trusted or read, or of which some events could not: kept whole for the operator, never dropped
    (threat D3). The same bytes for the same reason are kept once, however often they are sent."""

    gateway = models.CharField(max_length=64)  # as it called itself
    reason = models.CharField(max_length=64)
    count = models.PositiveIntegerField(default=0)  # events that were left out; 0: the whole batch
    raw = models.BinaryField()
    digest = models.BinaryField(max_length=32)  # SHA-256 of `raw`
    received_at = models.DateTimeField(auto_now_add=True)
    resolved_at = models.DateTimeField(null=True, blank=True)  # read anew without fault by `manage.py retry_rejected`

    class Meta:
        constraints = [models.UniqueConstraint(fields=["digest", "reason"], name="rejected_batch_once")]

    def __str__(self) -> str:
        return f"{self.gateway}: {self.reason}"
