"""Rows of planned against measured: what was seen of each revision, and what of it is not to correct plans."""

from __future__ import annotations

from django.db import models

from berth.orgs.tenancy import OrgOwned


class PlanCheck(OrgOwned):
    """Planned against measured, of one revision and one figure, as of its latest requests."""

    deployment = models.ForeignKey("deployments.Deployment", on_delete=models.PROTECT, related_name="+")
    revision = models.ForeignKey("deployments.Revision", on_delete=models.PROTECT, related_name="checks")
    metric = models.CharField(max_length=24)  # berth.deployments.measured: SPEED, FIRST
    planned = models.FloatField(null=True)  # as the revision's plan says; null: it says nothing of it
    expected = models.FloatField(null=True)  # by the planner, without what was learnt, at the load that was measured
    measured = models.FloatField()  # the median
    count = models.PositiveIntegerField()  # requests it is the median of
    load = models.FloatField()  # requests at once in a replica, in the median
    window_start = models.DateTimeField()
    window_end = models.DateTimeField()
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["revision", "metric"], name="plan_check_once"),
            models.CheckConstraint(condition=models.Q(measured__gt=0, count__gte=1), name="plan_check_positive"),
        ]
        indexes = [models.Index(fields=["window_end"], name="plan_check_by_time")]

    def __str__(self) -> str:
        return self.metric


class IgnoredCorrection(models.Model):
    """What was learnt about an engine, weight format and tier, and an operator set aside. It names no organisation's thing."""

    engine = models.CharField(max_length=16)
    scheme = models.CharField(max_length=16)
    hardware = models.CharField(max_length=48)
    metric = models.CharField(max_length=16)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["engine", "scheme", "hardware", "metric"], name="ignored_correction_once")
        ]

    def __str__(self) -> str:
        return "/".join(self.key)

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.engine, self.scheme, self.hardware, self.metric)
