"""What a replica is told: its launch specification, from its revision and the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from berth.catalog.models import ArtefactFile
from berth.catalog.store import store
from berth.compute.launch import LAUNCH_FORMAT, Adapter, LaunchSpec, ModelFile
from berth.deployments import adapters
from berth.deployments.decision import DRAIN_SECONDS
from berth.deployments.models import Replica
from berth.deployments.options import told_by

START_DEADLINE_SECONDS = 600
_STACK_BYTES = 8 << 20
_THREADS_PER_SLOT, _THREADS = 4, 32  # of llama.cpp's HTTP server and of the engine


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
        model_alias=adapters.alias_of(deployment.org.slug, deployment, revision),
        context_length=revision.context_length,
        slots=revision.slots,
        threads=revision.threads,
        secret_file="",
        state_dir="",
        pooling=revision.version.facts.get("pooling"),
        chat=_chats(revision.version.facts),
        model_format=revision.artefact.format,
        # With GPUs drivers map far more of the main memory than is ever used.
        memory_limit=None if replica.devices or revision.gpus else memory_limit(revision.memory, revision.slots),
        start_deadline_seconds=START_DEADLINE_SECONDS,
        drain_seconds=DRAIN_SECONDS,
        tier=revision.tier,
        gpus=max(revision.gpus, len(replica.devices)),
        devices=tuple(replica.devices),
        scrub=replica.scrub,
        adapters=_adapters(replica),
        **told_by(revision),
    )


def _chats(facts: Mapping[str, Any]) -> bool:
    """Whether a chat is part of its trial start: it writes text, and has a template for turns."""
    return bool(facts.get("has_chat_template")) and facts.get("pooling") is None


def _adapters(replica: Replica) -> tuple[Adapter, ...]:
    """In the revision's order, by which llama.cpp is asked for them."""
    org, found = replica.deployment.org.slug, adapters.carried(replica.revision)
    files = _by_artefact(replica.org_id, [each.artefact for each in found])
    return tuple(Adapter(f"{org}/{each.name}", files[each.artefact], each.rank) for each in found)


def _by_artefact(org_id: UUID, artefacts: Sequence[str]) -> dict[str, tuple[ModelFile, ...]]:
    if not artefacts:
        return {}
    files: dict[str, list[ModelFile]] = {each: [] for each in artefacts}
    for file in (
        ArtefactFile.objects.for_org(org_id).filter(artefact__in=[UUID(each) for each in artefacts]).order_by("name")
    ):
        files[str(file.artefact_id)].append(_file(file))
    return {each: tuple(held) for each, held in files.items()}


def memory_limit(planned: int, slots: int) -> int:
    """Bytes of private memory at which an engine is refused more: above the plan by an eighth, and by the stacks of its threads,
    which the kernel counts whole (8 MiB each) although little of them is used (docs/planner.md)."""
    return planned + planned // 8 + (slots * _THREADS_PER_SLOT + _THREADS) * _STACK_BYTES


def _files(replica: Replica) -> QuerySet[ArtefactFile]:
    return ArtefactFile.objects.for_org(replica.org_id).filter(artefact=replica.revision.artefact_id).order_by("name")


def _file(file: ArtefactFile) -> ModelFile:
    kept = store()
    path = kept.local_path(file.sha256)
    return ModelFile(
        path="" if path is None else str(path),
        role=file.role,
        size=file.size,
        sha256=file.sha256,
        name=file.name,
        url=kept.grant(file.sha256),
    )
