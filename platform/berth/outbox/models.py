"""Changes that gateways must hear of, written in the transaction that makes them."""

from django.db import models


class Change(models.Model):
    """One reason to publish. What changed is read from the tables themselves, so a change carries no payload.

    `version` is the snapshot that covers it, null until then; covered rows are kept for a day, so that whoever made the
    change can ask on which gateways it has arrived.
    """

    id = models.BigAutoField(primary_key=True)
    topic = models.CharField(max_length=32)  # "keys", "routes", "orgs": told in logs and lag metrics
    at = models.DateTimeField(auto_now_add=True)
    version = models.BigIntegerField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["id"], condition=models.Q(version=None), name="change_pending")]

    def __str__(self) -> str:
        return f"{self.topic} #{self.pk}"
