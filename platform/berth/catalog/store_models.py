"""What the store holds, and how much of it an organisation may have."""

from __future__ import annotations

from django.db import models

from berth.orgs.tenancy import OrgOwned


class StoredFile(models.Model):
    """One content in the store, whoever uses it. Who adds a reference, and who removes the content, holds this row's lock meanwhile."""

    sha256 = models.CharField(max_length=64, primary_key=True)
    size = models.BigIntegerField()  # bytes
    touched_at = models.DateTimeField()  # last put or asked for; what is touched is not removed for a while

    class Meta:
        indexes = [models.Index(fields=["touched_at"], name="stored_file_by_touch")]

    def __str__(self) -> str:
        return self.sha256


class StorageQuota(OrgOwned):
    """An operator's word for one organisation. Without a row the installation's default holds."""

    bytes = models.BigIntegerField(null=True)  # None: no limit

    class Meta:
        constraints = [models.UniqueConstraint(fields=["org"], name="storage_quota_once")]

    def __str__(self) -> str:
        return str(self.bytes)
