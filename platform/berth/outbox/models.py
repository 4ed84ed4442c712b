"""Changes that gateways must hear of, written in the transaction that makes them and cleared when they are published."""

from django.db import models


class Change(models.Model):
    """One reason to publish. What changed is read from the tables themselves, so a change carries no payload."""

    id = models.BigAutoField(primary_key=True)
    topic = models.CharField(max_length=32)  # "keys", "routes", "orgs": told in logs and lag metrics
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.topic} #{self.pk}"
