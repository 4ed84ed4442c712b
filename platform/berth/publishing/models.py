"""The snapshot's version: one row, raised under a lock, so that versions only rise."""

from django.db import models

from berth.orgs.tenancy import new_id


class Publication(models.Model):
    """`epoch` is this database's life: restored backups get a new one by `manage.py new_epoch`."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    epoch = models.UUIDField(default=new_id)
    version = models.BigIntegerField(default=0)
    published_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="publication_single_row")]

    def __str__(self) -> str:
        return f"version {self.version}"
