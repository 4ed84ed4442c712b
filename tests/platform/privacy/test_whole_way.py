"""One record from a client's request to an admin's eyes: the real gateway, the real queue, the real tables."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings

from berth.host.valkey import Valkey
from berth.privacy.ingest import ingest
from berth_gateway.contract import KeyInfo, OrgInfo, usage_key
from tests.gateway.core import whole_answer
from tests.gateway.harness import NAME, Engine, GatewayProcess, World, post
from tests.platform.privacy.test_records import House
from tests.runtime.agents import eventually

pytestmark = pytest.mark.django_db

PROMPT, ANSWER = "BC-PROMPTCANARY7Q2", "BC-ANSWERCANARYX9Z"


def test_what_a_client_asked_is_what_an_admin_reads(tmp_path: Path, valkey: redis.Redis, valkey_server: Valkey) -> None:
    house, engine = House(), Engine()
    engine.script = lambda seen, talk: talk.send(whole_answer([ANSWER]))
    assert house.patch(recording=True).status_code == 200
    world = World()
    world.org = OrgInfo(str(house.org.pk), "acme", recording=house.told)
    world.orgs = [world.org]
    digest = hashlib.sha256(world.token.encode()).digest()
    world.keys = [KeyInfo(digest=digest, key_id=str(house.key.pk), org_id=world.org.org_id)]
    world.route("acme/model", engine.port, deployment_id=str(house.deployment.pk))
    world.publish(valkey)
    process = GatewayProcess(tmp_path, world, valkey_server.url)
    master = bytes.fromhex((settings.SECRETS_DIR / "usage_master_key").read_text().strip())
    (tmp_path / "usage.key").write_text(usage_key(master, NAME).hex())
    process.start()
    asked: dict[str, Any] = {"model": "acme/model", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5}
    try:
        answer = post(process.port, "/v1/chat/completions", {**asked, "stream": True}, world.token)
        eventually(lambda: ingest().kept, "the record to arrive")
    finally:
        process.kill()
        engine.stop()
    process.check_log()
    (listed,) = house.client.get(house.url("records")).json()["items"]
    opened = house.post(f"records/{listed['id']}/open").json()
    assert PROMPT in opened["request"] and opened["response"] == answer.body.decode()
    assert (opened["endpoint"], opened["request_cut"], opened["response_cut"]) == ("chat/completions", False, False)
    assert f"req_{listed['id'].replace('-', '')}" == answer.headers["x-request-id"]
