"""What a replica is told: its launch specification, from its revision and the store."""

from __future__ import annotations

from django.db.models import QuerySet

from berth.catalog.models import ArtefactFile
from berth.catalog.store import store
from berth.compute.launch import LAUNCH_FORMAT, LaunchSpec, ModelFile
from berth.deployments.models import Replica
from berth.deployments.step import DRAIN_SECONDS

START_DEADLINE_SECONDS = 600


def launch_spec(replica: Replica) -> LaunchSpec:
    """`replica` comes with revision, deployment and organisation. The runtime verifies every file again before it starts."""
    revision, deployment = replica.revision, replica.deployment
    return LaunchSpec(
        format=LAUNCH_FORMAT,
        replica=replica.name,
        org_id=str(replica.org_id),
        deployment_id=str(replica.deployment_id),
        revision=revision.number,
        engine=revision.engine,
        files=tuple(_file(file) for file in _files(replica)),
        model_alias=f"{deployment.org.slug}/{deployment.name}",
        context_length=revision.context_length,
        slots=revision.slots,
        threads=revision.threads,
        secret_file="",
        state_dir="",
        memory_limit=memory_limit(revision.memory),
        start_deadline_seconds=START_DEADLINE_SECONDS,
        drain_seconds=DRAIN_SECONDS,
    )


def memory_limit(planned: int) -> int:
    """Bytes at which an engine is stopped from taking more than was planned: a quarter and 512 MiB above it, because limits count
    what is reserved and not only what is used."""
    return planned + planned // 4 + (512 << 20)


def _files(replica: Replica) -> QuerySet[ArtefactFile]:
    return ArtefactFile.objects.for_org(replica.org_id).filter(artefact=replica.revision.artefact_id).order_by("name")


def _file(file: ArtefactFile) -> ModelFile:
    return ModelFile(path=str(store().path(file.sha256)), role=file.role, size=file.size, sha256=file.sha256)
