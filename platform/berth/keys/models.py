"""API keys. The secret itself is never stored: only its SHA-256, which suits a 256-bit random value."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from berth.orgs.limits import Limited
from berth.orgs.models import User
from berth.orgs.tenancy import OrgOwned


class KeyKind(models.TextChoices):
    MEMBER = "member"
    SERVICE = "service"  # outlives its maker's membership
    PLAYGROUND = "playground"  # short-lived, made by the dashboard


class ApiKey(Limited, OrgOwned):
    name = models.CharField(max_length=80)
    kind = models.CharField(max_length=16, choices=KeyKind, default=KeyKind.MEMBER)
    digest = models.BinaryField(max_length=32, unique=True)
    hint = models.CharField(max_length=4)  # the last four characters, to tell keys apart
    scopes = ArrayField(models.CharField(max_length=32), default=list)
    deployment_ids = ArrayField(models.UUIDField(), null=True, blank=True)  # null: every deployment of the organisation
    networks = ArrayField(
        models.CharField(max_length=43), default=list, blank=True
    )  # CIDR; empty: usable from anywhere
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)  # moved forward by metering when usage arrives
    revoked_at = models.DateTimeField(null=True, blank=True)
    revoked_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["org", "name"],
                condition=models.Q(revoked_at=None) & ~models.Q(kind="playground"),
                name="api_key_name_once",
            ),
        ]
        indexes = [models.Index(fields=["org", "-id"], name="api_key_by_org")]

    def __str__(self) -> str:
        return str(self.pk)
