"""Inference records in the control plane: a policy that is off until an admin turns it on, and a way back that leaves a trace."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
import redis
from django.conf import settings
from django.core.management import call_command
from django.db import IntegrityError, transaction

from berth.deployments.models import Deployment
from berth.keys.models import ApiKey
from berth.orgs.models import Member
from berth.orgs.tenancy import new_id
from berth.privacy.ingest import expire, ingest
from berth.privacy.models import InferenceRecord, PrivacyEvent, SealingKey
from berth.privacy.sealing import CannotOpen, new_pair, open_box
from berth.publishing.snapshot import build
from berth_gateway.contract import (
    RECORD_FORMAT,
    RECORD_STREAM,
    RecordContent,
    Recording,
    SealedRecord,
    Snapshot,
    box_context,
    record_mac,
    usage_key,
)
from berth_gateway.sealing import seal
from tests import make

pytestmark = pytest.mark.django_db

PROMPT, ANSWER = b"BC-PROMPTCANARY7Q2", b"BC-ANSWERCANARYX9Z"
CONTENT = RecordContent(RECORD_FORMAT, "chat/completions", PROMPT, ANSWER)
GATEWAY = "local"


def now() -> datetime:
    return datetime.now(UTC)


def snapshot() -> Snapshot:
    return build(epoch=new_id(), version=1, now=now())


class House:
    """An organisation with an owner, a developer, a key and a deployment."""

    def __init__(self) -> None:
        self.owner: Member = make.member(make.org(), "owner")
        self.org = self.owner.org
        self.developer = make.member(self.org, "developer")
        self.key: ApiKey = make.key(self.owner)[0]
        self.deployment: Deployment = make.deployment(self.org)
        self.client = make.confirmed(make.client(self.owner.user))

    def url(self, tail: str) -> str:
        return f"/api/v1/orgs/{self.org.slug}/{tail}"

    def patch(self, **content: Any) -> Any:
        return self.client.patch(self.url("privacy"), content, "application/json")

    def post(self, tail: str) -> Any:
        return self.client.post(self.url(tail), {}, "application/json")

    @property
    def told(self) -> Recording | None:
        """What gateways are told."""
        return next(org.recording for org in snapshot().orgs if org.org_id == str(self.org.pk))

    def record(self, content: RecordContent = CONTENT, **fields: Any) -> SealedRecord:
        """As a gateway makes it."""
        wish = self.told
        assert wish is not None
        event_id = str(new_id())
        box = seal(
            wish.public_key, wish.key_id, box_context(event_id, str(self.org.pk)), msgspec.msgpack.encode(content)
        )
        made = SealedRecord(
            format=RECORD_FORMAT,
            gateway=GATEWAY,
            event_id=event_id,
            org_id=str(self.org.pk),
            deployment_id=str(self.deployment.pk),
            api_key_id=str(self.key.pk),
            sealing_key_id=wish.key_id,
            accepted_at=now().timestamp(),
            box=box,
        )
        return msgspec.structs.replace(made, **fields)


def sent(valkey: redis.Redis, *records: SealedRecord, master: bytes | None = None) -> None:
    key = usage_key(master or bytes.fromhex((settings.SECRETS_DIR / "usage_master_key").read_text().strip()), GATEWAY)
    for record in records:
        signed = msgspec.structs.replace(record, mac=record_mac(key, record))
        valkey.xadd(RECORD_STREAM, {b"record": msgspec.msgpack.encode(signed)})


@pytest.fixture
def house(valkey: redis.Redis) -> House:
    return House()


@pytest.fixture
def open_house(house: House) -> House:
    """One that keeps its requests."""
    assert house.patch(recording=True).status_code == 200
    return house


def test_nothing_is_kept_until_an_admin_says_so(house: House) -> None:
    assert house.client.get(house.url("privacy")).json() == {
        "recording": False,
        "retention_days": 30,
        "padded": False,
        "keys_apart": False,
        "excluded_deployment_ids": [],
        "excluded_key_ids": [],
        "changed_at": None,
    }
    assert house.told is None
    asked = make.client(house.developer.user).patch(house.url("privacy"), {"recording": True}, "application/json")
    assert (asked.status_code, asked.json()["error"]["params"]) == (403, {"action": "privacy.write"})
    changed = house.patch(recording=True, retention_days=7).json()
    assert changed["recording"] and changed["retention_days"] == 7 and changed["change"]["id"] > 0
    wish = house.told
    assert wish is not None and len(wish.public_key) == 32
    assert house.patch(recording=False).status_code == 200
    assert house.told is None
    house.patch(recording=True)
    again = house.told
    assert again is not None and again.key_id == wish.key_id  # what is kept stays readable
    events = house.client.get(house.url("privacy/events")).json()["items"]
    assert [event["kind"] for event in events] == ["policy_changed"] * 3
    assert events[-1]["details"]["retention_days"] == 7


def test_answers_can_be_filled_up_with_and_without_records(house: House) -> None:
    def told() -> bool:
        return next(org.padded for org in snapshot().orgs if org.org_id == str(house.org.pk))

    assert not told()
    assert house.patch(padded=True).json()["padded"] is True
    assert told() and house.told is None
    house.patch(padded=False)
    assert not told()


@pytest.mark.threat("G8")
def test_keys_can_be_kept_apart_in_prefix_caches(house: House) -> None:
    def told() -> bool:
        return next(org.keys_apart for org in snapshot().orgs if org.org_id == str(house.org.pk))

    assert not told()
    assert house.patch(keys_apart=True).json()["keys_apart"] is True
    assert told()
    assert house.patch(padded=True).json()["keys_apart"] is True  # what is absent stays
    house.patch(keys_apart=False)
    assert not told()


def test_a_deployment_and_a_key_can_be_stricter(open_house: House) -> None:
    house = open_house
    assert all(each.recorded for each in (*snapshot().keys, *snapshot().routes))
    house.patch(excluded_deployment_ids=[str(house.deployment.pk)], excluded_key_ids=[str(house.key.pk)])
    told = snapshot()
    assert [route.recorded for route in told.routes if route.deployment_id == str(house.deployment.pk)] == [False]
    assert [key.recorded for key in told.keys if key.key_id == str(house.key.pk)] == [False]
    other = House()
    for field, foreign in (("excluded_deployment_ids", other.deployment.pk), ("excluded_key_ids", other.key.pk)):
        answer = house.patch(**{field: [str(foreign)]})
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_a_record_is_opened_by_who_may_and_the_reading_stays_on_record(open_house: House, valkey: redis.Redis) -> None:
    house = open_house
    record = house.record()
    sent(valkey, record, record)
    assert ingest().kept == 2 and valkey.xlen(RECORD_STREAM) == 0  # the second changes nothing
    listed = house.client.get(house.url("records")).json()["items"]
    assert [each["id"] for each in listed] == [record.event_id] and "box" not in listed[0]
    assert make.client(house.developer.user).post(house.url(f"records/{record.event_id}/open"), {}).status_code == 403
    answer = house.post(f"records/{record.event_id}/open")
    assert (answer.status_code, answer["Cache-Control"]) == (200, "no-store")
    assert (answer.json()["request"], answer.json()["response"]) == (PROMPT.decode(), ANSWER.decode())
    reads = PrivacyEvent.objects.for_org(house.org).filter(kind="record_read")
    assert [(read.user, read.record_id) for read in reads] == [(house.owner.user, UUID(record.event_id))]
    stranger = House()
    assert stranger.post(f"records/{record.event_id}/open").status_code == 404


@pytest.mark.threat("A3")
def test_reading_a_record_needs_the_password_lately(open_house: House) -> None:
    """A browser that somebody left signed in reads nothing; the list without content is no secret of that kind."""
    house = open_house
    record = house.record()
    sent(redis.Redis.from_url(settings.REDIS_URL), record)
    assert ingest().kept == 1
    address = f"records/{record.event_id}/open"
    for client in (make.client(house.owner.user), make.confirmed(make.client(house.owner.user), ago=901)):
        house.client = client
        refused = house.post(address)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["params"]) == (403, "sign_in.not_recent", {"seconds": 900})
        assert client.get(house.url("records")).status_code == 200
    assert not PrivacyEvent.objects.for_org(house.org).filter(kind="record_read").exists()
    house.client = make.confirmed(client, ago=890)
    assert house.post(address).status_code == 200


def test_no_table_and_no_queue_holds_the_content_or_an_open_key(
    open_house: House, valkey: redis.Redis, tmp_path: Any
) -> None:
    sent(valkey, open_house.record())
    queued = repr(valkey.xrange(RECORD_STREAM)).encode()
    ingest()
    dump = tmp_path / "dump.json"
    call_command("dumpdata", "--output", str(dump))
    row = InferenceRecord.objects.for_org(open_house.org).get()
    key = SealingKey.objects.for_org(open_house.org).get()
    everything = dump.read_bytes() + queued + bytes(row.box) + bytes(key.private_sealed or b"")
    for canary in (PROMPT, ANSWER):
        assert canary not in everything and canary.hex().encode() not in everything


@pytest.mark.threat("D3")
def test_what_no_gateway_of_ours_made_is_left(open_house: House, valkey: redis.Redis) -> None:
    house, other = open_house, House()
    good = house.record()
    sent(valkey, good, master=b"x" * 32)
    for wrong in (
        {"api_key_id": str(other.key.pk)},
        {"deployment_id": str(other.deployment.pk)},
        {"org_id": str(other.org.pk)},
        {"sealing_key_id": str(new_id())},
        {"accepted_at": float("nan")},
        {"event_id": "x"},
        {"format": 2},
    ):
        sent(valkey, msgspec.structs.replace(good, **wrong))  # type: ignore[arg-type]
    valkey.xadd(RECORD_STREAM, {b"record": b"\xff"})
    valkey.xadd(RECORD_STREAM, {b"other": b""})
    assert ingest().kept == 0
    assert valkey.xlen(RECORD_STREAM) == 0
    assert not InferenceRecord.objects.for_org(house.org).exists()


def test_what_was_turned_off_meanwhile_is_not_kept(open_house: House, valkey: redis.Redis) -> None:
    house = open_house
    record = house.record()
    for change in ({"excluded_key_ids": [str(house.key.pk)]}, {"excluded_key_ids": [], "recording": False}):
        assert house.patch(**change).status_code == 200
        sent(valkey, record)
        assert ingest().kept == 0
    house.patch(recording=True)
    sent(valkey, record)
    assert ingest().kept == 1


def test_records_end_with_their_retention(open_house: House, valkey: redis.Redis) -> None:
    house = open_house
    old = house.record(accepted_at=(now() - timedelta(days=5)).timestamp())
    sent(valkey, old, house.record())
    assert ingest().kept == 2
    house.patch(retention_days=3)  # holds for what is there
    assert len(house.client.get(house.url("records")).json()["items"]) == 1
    assert house.post(f"records/{old.event_id}/open").status_code == 404
    assert (expire(), expire(), expire(now=now() + timedelta(days=4))) == (1, 0, 1)


def test_after_erasure_not_even_a_backup_can_be_read(open_house: House, valkey: redis.Redis) -> None:
    house = open_house
    sent(valkey, house.record())
    ingest()
    backup = InferenceRecord.objects.for_org(house.org).get()
    late = house.record()
    assert house.post("records/erase").json() == {"erased": 1}
    assert house.client.get(house.url("records")).json()["items"] == []
    destroyed = SealingKey.objects.for_org(house.org).get(pk=backup.sealing_key_id)
    assert destroyed.private_sealed is None and destroyed.destroyed_at is not None
    backup.save(force_insert=True)  # restored from a backup
    answer = house.post(f"records/{backup.pk}/open")
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "privacy.record_gone")
    wish = house.told
    assert wish is not None and wish.key_id != str(destroyed.pk)
    sent(valkey, late)
    assert ingest().kept == 0  # sealed to a key that is gone
    assert PrivacyEvent.objects.for_org(house.org).filter(kind="records_erased").get().details == {"records": 1}


def test_boxes_open_for_their_key_event_and_organisation_only() -> None:
    key_id, event_id, org_id = new_id(), new_id(), new_id()
    public, private = new_pair(key_id)
    box = seal(public, str(key_id), box_context(str(event_id), str(org_id)), msgspec.msgpack.encode(CONTENT))
    right: dict[str, Any] = {"key_id": key_id, "private_sealed": private, "event_id": event_id, "org_id": org_id}
    assert open_box(box, **right) == CONTENT
    other_public, other_private = new_pair(key_id)
    assert other_public != public
    for wrong in (
        {"private_sealed": other_private},
        {"key_id": new_id()},
        {"event_id": new_id()},
        {"org_id": new_id()},
    ):
        with pytest.raises(CannotOpen):
            open_box(box, **right | wrong)
    for altered in (box[:-1], b"", b"\x02" + box[1:], box[:20] + bytes([box[20] ^ 1]) + box[21:]):
        with pytest.raises(CannotOpen):
            open_box(altered, **right)
    other = seal(public, str(key_id), box_context(str(event_id), str(org_id)), b"no content")
    with pytest.raises(CannotOpen):
        open_box(other, **right)


def test_an_organisation_has_one_key_at_a_time(open_house: House) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        SealingKey.objects.create(org=open_house.org, public_key=b"x" * 32, private_sealed=b"y")
    assert json.loads(open_house.client.get(open_house.url("privacy")).content)["recording"] is True
