"""A key is revoked in the control plane while it is used a thousand times a second."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.conf import settings

from berth.host.child import free_port
from berth.host.valkey import Valkey
from berth.outbox import services as outbox
from berth.publishing import services
from berth.publishing.here import Publisher
from tests import make
from tests.gateway import crowd
from tests.gateway.harness import World, wait_for

BENCH = Path(__file__).parents[1] / "bench" / "gateway"
RATE = 1300


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, Path]:
    """Engine and clients, compiled."""
    made = {"engine": BENCH / "engine.c", "crowd": Path(__file__).with_name("crowd.c")}
    for name, source in made.items():
        subprocess.run(["cc", "-O2", "-o", str(tmp_path / name), str(source)], check=True)
    return {name: tmp_path / name for name in made}


@pytest.fixture
def fast_engine(programs: dict[str, Path]) -> Iterator[int]:
    """Its port."""
    port = free_port()
    process = subprocess.Popen([programs["engine"], str(port)])

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_for(listens, "the engine")
    yield port
    process.kill()
    process.wait()


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    """As in every process that serves people."""
    made = Publisher()
    monkeypatch.setattr(outbox, "_listeners", [made.ask])
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.threat("K4")
@pytest.mark.django_db(transaction=True)
def test_a_revoked_key_is_refused_everywhere_within_a_second_of_the_commit(
    tmp_path: Path,
    valkey: redis.Redis,
    valkey_server: Valkey,
    programs: dict[str, Path],
    fast_engine: int,
    publisher: Publisher,
) -> None:
    owner = make.member(make.org("acme"), "owner")
    key, secret = make.key(owner)
    deployment = make.deployment(owner.org, "model")
    revision = make.revision(deployment, 2, engine="vllm", slots=512)
    deployment.revision = revision
    deployment.save(update_fields=["revision"])
    make.replica(deployment, revision=revision, port=fast_engine)
    services.publish()
    client = make.client(owner.user)
    client.get("/api/v1/orgs/acme/keys")  # everything is imported
    environ = {"BERTH_SNAPSHOT_PUBLIC_KEY_FILE": str(settings.SECRETS_DIR / "snapshot_public_key.pem")}
    gateways = [crowd.start(tmp_path, World(), valkey_server.url, f"gateway-{n}", 2, **environ) for n in range(2)]
    try:
        ports = ",".join(str(each.port) for each in gateways)
        load = subprocess.Popen(
            [programs["crowd"], ports, secret, "acme/model", "64", str(RATE), "12"], stdout=subprocess.PIPE
        )
        time.sleep(6)
        before = time.monotonic()
        answer = client.post(f"/api/v1/orgs/acme/keys/{key.pk}/revoke", {}, content_type="application/json")
        committed = time.monotonic()
        assert answer.status_code < 300, answer.content
        out, _ = load.communicate(timeout=60)
    finally:
        for each in gateways:
            each.stop()
    told = json.loads(out)
    statuses = {int(status): count for status, count in told["statuses"].items()}
    rate = statuses.get(200, 0) / (committed - told["start"])
    print(
        f"served {rate:.0f} a second before; the last that was served came {told['last_good'] - committed:.3f} s after the "
        f"answer to the revocation, {told['last_good'] - before:.3f} s after it was asked for; {statuses}, broken {told['broken']}"
    )
    assert statuses[401] > 1000
    assert set(statuses) <= {200, 401, 429, 503}
    assert told["last_good"] - committed < 1.0
