"""What an organisation lets be kept of its requests, the keys it is sealed to, the sealed records, and who has opened them."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from berth.orgs.models import User
from berth.orgs.tenancy import OrgOwned

DEFAULT_DAYS, MOST_DAYS = 30, 365


class PrivacyPolicy(OrgOwned):
    """One for each organisation that ever changed it; without one nothing is kept. Deployments and keys can only be stricter."""

    recording = models.BooleanField(default=False)
    retention_days = models.PositiveSmallIntegerField(default=DEFAULT_DAYS)
    padded = models.BooleanField(default=False)  # answers are filled up to fixed sizes
    keys_apart = models.BooleanField(
        default=False, db_default=False
    )  # no key finds another's prefixes in an engine's cache
    excluded_deployment_ids = ArrayField(models.UUIDField(), default=list, blank=True)
    excluded_key_ids = ArrayField(models.UUIDField(), default=list, blank=True)
    changed_at = models.DateTimeField()
    changed_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["org"], name="privacy_policy_once"),
            models.CheckConstraint(
                condition=models.Q(retention_days__gte=1, retention_days__lte=MOST_DAYS),
                name="privacy_retention_bounded",
            ),
        ]

    def __str__(self) -> str:
        return str(self.pk)


class SealingKey(OrgOwned):
    """An organisation's X25519 key pair. The private half is sealed with a key made of the installation's master key; without it
    (null) nothing that was sealed to the public half can ever be opened again."""

    public_key = models.BinaryField(max_length=32)
    private_sealed = models.BinaryField(null=True, blank=True)
    destroyed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["org"], condition=models.Q(destroyed_at=None), name="one_sealing_key_at_a_time"
            ),
            models.CheckConstraint(
                condition=models.Q(destroyed_at=None, private_sealed__isnull=False)
                | models.Q(destroyed_at__isnull=False, private_sealed__isnull=True),
                name="destroyed_sealing_key_is_gone",
            ),
        ]

    def __str__(self) -> str:
        return str(self.pk)


class InferenceRecord(OrgOwned):
    """A request and its answer, sealed. The id is the usage event's. Nothing outside `box` tells anything of the content."""

    deployment_id = models.UUIDField()
    api_key_id = models.UUIDField()
    sealing_key = models.ForeignKey(SealingKey, on_delete=models.PROTECT, related_name="+")
    accepted_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    box = models.BinaryField()

    class Meta:
        indexes = [
            models.Index(fields=["org", "-id"], name="records_by_org"),
            models.Index(fields=["expires_at"], name="records_by_end"),
        ]

    def __str__(self) -> str:
        return str(self.pk)


class PrivacyEventKind(models.TextChoices):
    POLICY_CHANGED = "policy_changed"
    RECORD_READ = "record_read"
    RECORDS_ERASED = "records_erased"


class PrivacyEvent(OrgOwned):
    """Who did what with records. Written in the transaction that does it; never changed, never erased with the records."""

    kind = models.CharField(max_length=24, choices=PrivacyEventKind)
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField()
    record_id = models.UUIDField(null=True, blank=True)
    details = models.JSONField(default=dict)  # figures and switches, no content

    class Meta:
        indexes = [models.Index(fields=["org", "-id"], name="privacy_events_by_org")]

    def __str__(self) -> str:
        return str(self.pk)
