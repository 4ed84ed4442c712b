"""Making a deployment's next revision, and the way from the one before it."""

from __future__ import annotations

from datetime import datetime

from berth.catalog.models import Artefact, ModelVersion
from berth.deployments import adapters, rollouts
from berth.deployments.history import record
from berth.deployments.models import Deployment, Revision
from berth.deployments.options import options_for
from berth.deployments.planning import NoPlan, plan_json, wishes_json
from berth.deployments.proposals import Wishes
from berth.deployments.revisions import next_revision
from berth.orgs.models import User
from berth.planner.needs import Needs, Pins
from berth.planner.shapes import Plan


def revise(
    deployment: Deployment,
    actor: User | None,
    version: ModelVersion,
    needs: Needs,
    pins: Pins,
    planned: Plan,
    now: datetime,
    rollout: Wishes | None = None,
    reason: str = "",
) -> None:
    choice = planned.choice
    if choice is None:
        raise NoPlan(planned)
    files = Artefact.objects.for_org(deployment.org_id).select_related("version__model")
    artefact = files.get(pk=choice.artefact_id)
    own = adapter_alone(deployment, version, artefact, choice.engine)
    adapters.check_still_fits(deployment, artefact, choice.engine)
    carried = adapters.wanted_beside(deployment, own)
    revision = next_revision(
        deployment,
        actor,
        version=version,
        artefact=artefact,
        engine=choice.engine,
        tier=choice.tier,
        context_length=choice.context_length,
        slots=choice.slots,
        threads=choice.threads,
        gpus=choice.layout.devices,
        options=options_for(choice, artefact),
        memory=(choice.layout.main_memory or choice.memory.total) + adapters.memory_of(deployment.org_id, carried),
        replicas=choice.replicas,
        needs=wishes_json(needs),
        plan={**plan_json(planned), "pins": wishes_json(pins)},
        adapters=adapters.as_stored(carried),
        reason=reason,
    )
    take_over(deployment, actor, revision, rollout, now)


def adapter_alone(
    deployment: Deployment, version: ModelVersion, artefact: Artefact, engine: str
) -> adapters.Carried | None:
    """Of an adapter that runs on replicas of its own: itself, to be loaded with its base. None: the files are the model's own."""
    if artefact.version_id == version.pk:
        return None
    files = adapters.files_of(version, engine)
    if files is None:  # planned only for engines that load it
        raise ValueError("an adapter on an engine that does not load it")
    return adapters.of_deployment(deployment, files)


def take_over(
    deployment: Deployment, actor: User | None, revision: Revision, rollout: Wishes | None, now: datetime
) -> None:
    """Makes it the wanted one."""
    rollouts.begin(deployment, actor, revision, rollout, now)
    deployment.revision = revision
    deployment.save(update_fields=["revision"])
    record(deployment, "revision_created", now, actor=actor, number=revision.number)
