"""The reconciler with real parts: this machine as the provider, llama.cpp, and the sample model."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import httpx
import psutil
import pytest
from django.conf import settings

from berth.catalog.models import ArtefactFile
from berth.catalog.services import import_path, import_sample
from berth.catalog.store import store
from berth.compute.providers.local import LocalProvider
from berth.deployments.memory_checks import check_memory
from berth.deployments.models import Deployment, Event, PlanCheck, Replica
from berth.deployments.reconcile import reconcile
from berth.deployments.secrets import replica_secret
from berth.deployments.services import deploy, pause
from tests import make
from tests.platform.catalog.gguf_bytes import File

pytestmark = pytest.mark.django_db
RUNTIME = Path(settings.PROJECT_DIR) / "runtime"


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[LocalProvider]:
    made = LocalProvider(tmp_path, python=Path(sys.executable), python_path=(RUNTIME,))
    yield made
    for replica in made.observe_all():
        made.stop(replica.name, drain_seconds=0)
    for _ in range(200):
        if not any(replica.alive for replica in made.observe_all()):
            return
        time.sleep(0.05)
    raise AssertionError("a replica outlived its stop")


def reconcile_until(provider: LocalProvider, deployment_id: UUID, state: str) -> Deployment:
    for _ in range(600):
        Deployment.objects.across_orgs("test").filter(pk=deployment_id).update(check_at=make.NOON)
        reconcile(deployment_id, provider)
        row = Deployment.objects.across_orgs("test").get(pk=deployment_id)
        if row.state == state:
            return row
        assert row.state != "failed", row.message
        time.sleep(0.1)
    raise AssertionError(f"still {row.state}: {row.message}")


def test_deploy_answers_survives_kill_and_pauses(provider: LocalProvider) -> None:
    org = make.org()
    owner = make.member(org, "owner").user
    version = import_sample(org, owner)
    deployment = deploy(
        org, owner, version=version, needs={"context_length": 1024, "concurrency": 1}, provider=provider
    )
    assert (deployment.name, deployment.state) == ("smollm2-135m-instruct", "queued")

    reconcile_until(provider, deployment.pk, "ready")
    first = Replica.objects.for_org(org).get(ended_at=None)
    assert (first.phase, first.name) == ("ready", f"{deployment.pk}-1-0-1")
    assert first.ready_at is not None and first.port
    answer = httpx.post(
        f"http://{first.host}:{first.port}/v1/completions",
        json={"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0},
        headers={"Authorization": f"Bearer {replica_secret(first.name)}"},
        timeout=60,
    )
    assert answer.json()["usage"]["completion_tokens"] >= 1

    # No more than what was planned for it.
    agent = psutil.Process(_agent_pid(provider, first.name))
    used = sum(process.memory_info().rss for process in agent.children(recursive=True))
    assert used <= first.revision.memory
    deadline = time.monotonic() + 30
    while check_memory(provider.observe_all(), datetime.now(UTC)) == 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert used / 2 <= PlanCheck.objects.for_org(org).get(metric="memory").measured <= first.revision.memory

    for process in [agent, *agent.children(recursive=True)]:  # else it may still tell that its engine ended
        os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(replica.alive for replica in provider.observe_all()) and time.monotonic() < deadline:
        time.sleep(0.05)
    reconcile_until(provider, deployment.pk, "starting")
    reconcile_until(provider, deployment.pk, "ready")
    second = Replica.objects.for_org(org).get(ended_at=None)
    assert second.name == f"{deployment.pk}-1-0-2"
    first.refresh_from_db()
    assert (first.phase, first.reason) == ("failed", "agent_lost")

    pause(deployment, owner)
    reconcile_until(provider, deployment.pk, "paused")
    assert not any(replica.alive for replica in provider.observe_all())
    kinds = list(Event.objects.for_org(org).order_by("id").values_list("kind", flat=True))
    assert kinds[:2] == ["revision_created", "deployed"]
    assert "paused" in kinds


@pytest.mark.threat("M7")
def test_one_flipped_byte_in_the_store_and_the_engine_never_starts(provider: LocalProvider, tmp_path: Path) -> None:
    org, operator = make.org(), make.user(operator=True)
    file = tmp_path / "tiny.gguf"
    file.write_bytes(File().packed())
    import_path(org, operator, str(file), "tiny")
    deployment = deploy(org, None, model="tiny", provider=provider)
    digest = ArtefactFile.objects.for_org(org).get().sha256
    kept = store().path(digest)
    kept.chmod(0o600)
    raw = bytearray(kept.read_bytes())
    raw[-1] ^= 1
    kept.write_bytes(raw)
    for _ in range(300):
        Deployment.objects.across_orgs("test").update(check_at=make.NOON)
        reconcile(deployment.pk, provider)
        deployment.refresh_from_db()
        if deployment.state == "failed":
            break
        time.sleep(0.1)
    assert (deployment.state, deployment.reason) == ("failed", "checksum_mismatch")
    phases = Replica.objects.for_org(org).get().phases
    assert "loading" not in [timing["phase"] for timing in phases]


def _agent_pid(provider: LocalProvider, name: str) -> int:
    from berth.compute.providers.folder import ReplicaFolder

    status = ReplicaFolder(provider._root, name).status()
    assert status is not None
    return status.pid
