"""Deployments, their immutable revisions, their replicas, and what happened to them."""

from __future__ import annotations

from django.db import models

from berth.catalog.models import Artefact, ModelVersion
from berth.deployments.plan_check import IgnoredCorrection as IgnoredCorrection
from berth.deployments.plan_check import PlanCheck as PlanCheck
from berth.deployments.preparation import Preparation as Preparation
from berth.orgs.limits import Limited
from berth.orgs.models import Organisation, User
from berth.orgs.tenancy import OrgOwned


class Desired(models.TextChoices):
    """What the owner wants."""

    RUNNING = "running"
    PAUSED = "paused"
    DELETED = "deleted"


class State(models.TextChoices):
    """What is the case; `states.py` says which moves are allowed."""

    QUEUED = "queued"
    STARTING = "starting"
    READY = "ready"
    UPDATING = "updating"
    DEGRADED = "degraded"  # serving, with fewer replicas than wanted
    ASLEEP = "asleep"  # no replica runs, because nobody asked for one; the next request wakes it
    STOPPING = "stopping"
    PAUSED = "paused"
    FAILED = "failed"
    DELETED = "deleted"


class Deployment(Limited, OrgOwned):
    """A model kept running as `org/name`. The reconciler owns `state` and everything below the lease."""

    name = models.CharField(max_length=63)
    desired = models.CharField(max_length=16, choices=Desired, default=Desired.RUNNING)
    state = models.CharField(max_length=16, choices=State, default=State.QUEUED)
    state_since = models.DateTimeField(auto_now_add=True)
    reason = models.CharField(max_length=64, blank=True)  # stable code, when failed or degraded
    message = models.CharField(max_length=400, blank=True)
    revision = models.ForeignKey(
        "deployments.Revision", null=True, on_delete=models.PROTECT, related_name="+"
    )  # the wanted one
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    sleep_after_seconds = models.PositiveIntegerField(null=True, blank=True)  # without a request; None: it never sleeps
    hold_seconds = models.PositiveIntegerField(default=300)  # how long a request waits for it to wake or start
    woken_at = models.DateTimeField(null=True, blank=True)  # when somebody last asked for it while it slept
    # The lease: who may act now. A writer whose token no longer matches writes nothing.
    lease_token = models.UUIDField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    check_at = models.DateTimeField(db_index=True, auto_now_add=True)  # when the reconciler looks again
    failures = models.PositiveIntegerField(default=0)  # consecutive, for back-off
    stable = models.ForeignKey(
        "deployments.Revision", null=True, on_delete=models.PROTECT, related_name="+"
    )  # the last one that was good; what a rollback goes back to
    # How many replicas: `replicas.py` is the only door. Null: the revision's own number.
    desired_replicas = models.PositiveIntegerField(null=True, blank=True)  # what scaling asks for now; 0: it may sleep
    min_replicas = models.PositiveIntegerField(null=True, blank=True)
    max_replicas = models.PositiveIntegerField(null=True, blank=True)
    scale_fence = models.BigIntegerField(default=0)  # of the latest scaler that was heard; an older one changes nothing
    peaks = models.JSONField(
        default=list, blank=True
    )  # declared: berth.deployments.scaling.observation.Peak, as plain data
    scaling = models.JSONField(
        default=dict, db_default=models.Value({}, models.JSONField()), blank=True
    )  # scaling_services.Wishes, as plain data; {}: the defaults
    # Requests that a replica gets at once at most, as scaling found out, and for which revision. Null: its slots.
    replica_limit = models.PositiveIntegerField(null=True, blank=True)
    replica_limit_revision = models.PositiveIntegerField(null=True, blank=True)
    # How requests are split while two revisions are compared; `traffic.py` reads it. {}: alike.
    traffic = models.JSONField(default=dict, blank=True)
    priority = models.SmallIntegerField(default=0)  # within its organisation: who gets room first, and who makes room
    # Of a LoRA adapter that the replicas of another deployment serve: that one. Null: it has replicas of its own.
    beside = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="adapters")
    waiting_since = models.DateTimeField(null=True, blank=True)  # for room
    last_wait_seconds = models.FloatField(null=True, blank=True)  # of the last wait for room that ended

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["org", "name"], condition=~models.Q(state="deleted"), name="deployment_name_once"
            ),
            models.CheckConstraint(
                condition=models.Q(name__regex=r"^[a-z0-9][a-z0-9._-]{0,62}$"), name="deployment_name_form"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def sleeping(self) -> bool:
        """Whether it sleeps and nobody has asked for it since."""
        woken = self.woken_at is not None and self.woken_at >= self.state_since
        return self.state == State.ASLEEP and not woken


class Revision(OrgOwned):
    """An immutable configuration of a deployment, with the plan that led to it."""

    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="revisions")
    number = models.PositiveIntegerField()
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="+")
    artefact = models.ForeignKey(Artefact, on_delete=models.PROTECT, related_name="+")
    engine = models.CharField(max_length=16)
    tier = models.CharField(max_length=48)
    context_length = models.PositiveIntegerField()  # tokens for one request
    slots = models.PositiveIntegerField()  # requests decoded side by side in a replica
    threads = models.PositiveIntegerField()
    memory = models.BigIntegerField()  # bytes a replica is planned to need
    replicas = models.PositiveIntegerField(default=1)
    needs = models.JSONField()
    plan = models.JSONField()  # the whole plan, with its reasons and rejected alternatives
    gpus = models.PositiveIntegerField(default=0)  # whole devices a replica has for itself
    # What the engine is told beside context and slots: options.Options without defaults, as plain data.
    options = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()), blank=True)
    # LoRA adapters that each replica loads, in their order in the engine: adapters.Carried, as plain data.
    adapters = models.JSONField(default=list, db_default=models.Value([], models.JSONField()), blank=True)
    reason = models.CharField(max_length=200, blank=True)  # why it was made, in its author's words
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["deployment", "number"], name="revision_number_once"),
            models.CheckConstraint(
                condition=models.Q(replicas__gte=1, slots__gte=1, context_length__gte=1), name="revision_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"rev {self.number}"


class Strategy(models.TextChoices):
    """How a new revision takes over."""

    ROLLING = "rolling"  # one by one as new replicas are ready
    CANARY = "canary"  # a rising share of the requests, held and judged at each step
    SHADOW = "shadow"  # copies of requests only, until somebody promotes it


class Status(models.TextChoices):
    """Of a rollout."""

    PROGRESSING = "progressing"
    PAUSED = "paused"
    WATCHING = "watching"  # the new revision serves alone, and is still judged
    COMPLETED = "completed"
    ROLLED_BACK = "rolled_back"
    SUPERSEDED = "superseded"  # another change came before it was finished


OPEN = (Status.PROGRESSING, Status.PAUSED, Status.WATCHING)


class Rollout(OrgOwned):
    """The way from one revision to another, and how it ended. The reconciler moves it on (`rollout.py` decides)."""

    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="rollouts")
    revision = models.ForeignKey(Revision, on_delete=models.PROTECT, related_name="+")
    base = models.ForeignKey(Revision, null=True, on_delete=models.PROTECT, related_name="+")  # null: the first one
    strategy = models.CharField(max_length=16, choices=Strategy, default=Strategy.ROLLING)
    status = models.CharField(max_length=16, choices=Status, default=Status.PROGRESSING)
    steps = models.JSONField(default=list)  # percent of the requests, rising; canary only
    step = models.PositiveIntegerField(default=0)  # index of the present one
    step_since = models.DateTimeField(null=True, blank=True)  # since when the present one is in force
    hold_seconds = models.PositiveIntegerField(default=300)  # of each step, and of watching
    shadow_percent = models.PositiveIntegerField(default=0)
    margins = models.JSONField(default=dict)  # rollout.Margins: how much worse is too much
    automatic = models.BooleanField(default=True)  # promotes and rolls back by itself
    paused_at_new = models.PositiveIntegerField(default=0)  # new replicas when it was paused: as many stay
    reason = models.CharField(max_length=64, blank=True)  # stable code of how it ended or why it waits
    message = models.CharField(max_length=400, blank=True)
    measured = models.JSONField(default=dict)  # old and new side by side, as last judged
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["deployment"], condition=models.Q(status__in=OPEN), name="rollout_one_open")
        ]
        indexes = [models.Index(fields=["deployment", "-id"], name="rollout_by_deployment")]

    def __str__(self) -> str:
        return f"{self.strategy} {self.status}"


class Replica(OrgOwned):
    """One running engine, as last observed. `name` is deterministic: `<deployment id>-<revision>-<ordinal>-<attempt>`."""

    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="replicas")
    revision = models.ForeignKey(Revision, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=96, unique=True)
    ordinal = models.PositiveIntegerField()
    phase = models.CharField(max_length=16)  # berth.compute.launch.Phase
    phases = models.JSONField(default=list)  # timings, as the runtime told them
    host = models.CharField(max_length=255, blank=True)
    port = models.PositiveIntegerField(null=True, blank=True)
    reason = models.CharField(max_length=64, blank=True)
    message = models.CharField(max_length=400, blank=True)
    started_at = models.DateTimeField(auto_now_add=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    retired_at = models.DateTimeField(null=True, blank=True)  # told to gateways as leaving; asked to end shortly after
    ended_at = models.DateTimeField(null=True, blank=True)
    granted_at = models.DateTimeField(null=True, blank=True)  # when it was last told where to fetch its files
    devices = models.JSONField(default=list)  # ids of the GPUs that it alone uses
    scrub = models.BooleanField(
        default=False
    )  # its devices were another organisation's before: to be overwritten first

    class Meta:
        indexes = [models.Index(fields=["deployment"], condition=models.Q(ended_at=None), name="replica_alive")]

    def __str__(self) -> str:
        return self.name


class Event(OrgOwned):
    """Something that happened to a deployment, in codes and numbers; the dashboard puts it into words."""

    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="events")
    kind = models.CharField(max_length=48)  # "state_changed", "replica_phase", "revision_created" …
    data = models.JSONField(default=dict)
    actor = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")  # null: Berth itself

    class Meta:
        indexes = [models.Index(fields=["deployment", "-id"], name="event_by_deployment")]

    def __str__(self) -> str:
        return self.kind


class Quota(models.Model):
    """The most that an organisation's replicas may hold together; null: no limit. An operator sets it."""

    org = models.OneToOneField(Organisation, on_delete=models.PROTECT, related_name="quota", primary_key=True)
    replicas = models.PositiveIntegerField(null=True, blank=True)
    gpus = models.PositiveIntegerField(null=True, blank=True)
    memory = models.PositiveBigIntegerField(null=True, blank=True)  # bytes
    regions = models.JSONField(
        null=True, blank=True
    )  # names of those where replicas may run; null: anywhere; its owner sets it

    def __str__(self) -> str:
        return str(self.org_id)


class ScalingLease(models.Model):
    """The one row that says who scales. `fence` rises with every holder, so that one who was paused is not heard any more."""

    fence = models.BigIntegerField(default=0)
    holder = models.UUIDField(null=True)
    until = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return str(self.fence)


class ScalingDecision(OrgOwned):
    """What scaling decided and why: a row when the number or the first reason changed."""

    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="+")
    before = models.PositiveIntegerField()
    desired = models.PositiveIntegerField()
    reasons = models.JSONField(default=list)  # [{"code", "text", "values"}], the one that decided first
    figures = models.JSONField(default=dict)  # what it rests on: rate, forecast, need, capacity, head_room, ready …

    class Meta:
        indexes = [models.Index(fields=["deployment", "-id"], name="scaling_by_deployment")]

    def __str__(self) -> str:
        return f"{self.before} to {self.desired}"
