"""Versions only rise, nothing is missed, and whatever breaks in between is repaired by the next run."""

from __future__ import annotations

import threading
from datetime import timedelta
from io import StringIO

import msgspec
import pytest
import redis
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone

from berth.outbox.models import Change
from berth.outbox.services import announce
from berth.publishing import services, store, tasks
from berth.publishing.models import Publication
from berth_gateway.contract import (
    GATEWAYS_KEY,
    SNAPSHOT_CHANNEL,
    SNAPSHOT_KEY,
    GatewayReport,
    SignedSnapshot,
    Snapshot,
)
from tests import make

pytestmark = pytest.mark.django_db


def published(valkey: redis.Redis) -> Snapshot:
    """What a gateway would read, with its signature checked as a gateway does."""
    signed = msgspec.msgpack.decode(valkey.hget(SNAPSHOT_KEY, "signed"), type=SignedSnapshot)
    public = load_pem_public_key((settings.SECRETS_DIR / "snapshot_public_key.pem").read_bytes())
    public.verify(signed.signature, signed.payload)
    return msgspec.msgpack.decode(signed.payload, type=Snapshot)


def test_publishes_signed_and_announces_the_version(valkey: redis.Redis) -> None:
    with valkey.pubsub() as listener:
        listener.subscribe(SNAPSHOT_CHANNEL)
        assert listener.get_message(timeout=5)["type"] == "subscribe"
        version = services.publish()
        assert listener.get_message(timeout=5)["data"] == str(version).encode()
    assert published(valkey).version == version == 1
    assert valkey.hget(SNAPSHOT_KEY, "version") == b"1"
    assert (
        valkey.hget(SNAPSHOT_KEY, "epoch").decode() == published(valkey).epoch == str(Publication.objects.get().epoch)
    )


@pytest.mark.threat("K5")
def test_signature_is_over_the_very_bytes(valkey: redis.Redis) -> None:
    services.publish()
    signed = msgspec.msgpack.decode(valkey.hget(SNAPSHOT_KEY, "signed"), type=SignedSnapshot)
    public = load_pem_public_key((settings.SECRETS_DIR / "snapshot_public_key.pem").read_bytes())
    with pytest.raises(InvalidSignature):
        public.verify(signed.signature, signed.payload[:-1] + bytes([signed.payload[-1] ^ 1]))


def test_does_nothing_when_nothing_waits(valkey: redis.Redis) -> None:
    assert services.publish() == 1
    assert services.publish() is None
    announce("keys")
    assert services.publish() == 2
    assert services.publish() is None


@pytest.mark.threat("K4")
def test_a_revoked_key_is_in_no_later_snapshot(valkey: redis.Redis) -> None:
    key, _ = make.key(make.member(make.org(), "owner"))
    services.publish()
    assert [each.key_id for each in published(valkey).keys] == [str(key.pk)]
    key.revoked_at = timezone.now()
    key.save()
    announce("keys")
    services.publish()
    assert published(valkey).keys == ()


@pytest.mark.threat("K4")
def test_a_late_older_write_changes_nothing(valkey: redis.Redis) -> None:
    services.publish()
    epoch = str(Publication.objects.get().epoch)
    old = msgspec.msgpack.decode(valkey.hget(SNAPSHOT_KEY, "signed"), type=SignedSnapshot)
    services.publish(force=True)
    assert not store.put(epoch, 1, old)
    assert not store.put(epoch, 2, old)
    assert not store.put("00000000-0000-7000-8000-000000000000", 99, old)
    assert published(valkey).version == 2


def test_lost_or_older_in_valkey_is_published_again(valkey: redis.Redis) -> None:
    services.publish()
    valkey.flushall()
    assert services.publish() == 2
    valkey.hset(SNAPSHOT_KEY, "version", "1")  # as after a restart from an older file
    assert services.publish() == 3
    assert published(valkey).version == 3


def test_rubbish_in_valkey_is_replaced(valkey: redis.Redis) -> None:
    valkey.hset(SNAPSHOT_KEY, mapping={"epoch": "zzz", "version": "many", "signed": "x"})
    services.publish()
    assert store.held() is None or published(valkey).version >= 1
    services.publish()
    assert published(valkey).version >= 1


def test_a_crash_between_commit_and_write_is_repaired(valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    services.publish()
    change = announce("keys")
    with monkeypatch.context() as patch:
        patch.setattr(store, "put", _crash)
        with pytest.raises(redis.ConnectionError):
            services.publish()
        tasks.publish()  # the door swallows what the next run repairs
    assert Change.objects.get(pk=change).version == 2
    assert valkey.hget(SNAPSHOT_KEY, "version") == b"1"
    assert services.publish() == 4  # 3 was the door's, and got no further than 2
    assert published(valkey).version == 4


def _crash(*_: object) -> bool:
    raise redis.ConnectionError("gone")


def test_refreshed_when_old(valkey: redis.Redis) -> None:
    now = timezone.now()
    services.publish(now=now)
    assert services.publish(now=now + timedelta(minutes=4)) is None
    assert services.publish(now=now + timedelta(minutes=6)) == 2
    assert published(valkey).issued_at == int((now + timedelta(minutes=6)).timestamp())


def test_new_epoch_outranks_what_a_lost_database_published(valkey: redis.Redis) -> None:
    for _ in range(3):
        services.publish(force=True)
    Publication.objects.update(version=1)  # as after restoring a backup
    before = str(Publication.objects.get().epoch)
    services.publish(force=True)
    assert published(valkey).version == 3, "gateways hold 3 already: an older one must not replace it"
    out = StringIO()
    call_command("new_epoch", stdout=out)
    assert published(valkey).epoch != before
    assert published(valkey).version == Publication.objects.get().version
    assert str(Publication.objects.get().epoch) in out.getvalue()


def test_command_publishes_at_once(valkey: redis.Redis) -> None:
    out = StringIO()
    call_command("publish", stdout=out)
    call_command("publish", stdout=out)
    assert published(valkey).version == 2
    assert "version 2" in out.getvalue()


def report(valkey: redis.Redis, name: str, version: int, age: float = 0.0, epoch: str | None = None) -> None:
    now = timezone.now().timestamp()
    value = GatewayReport(name, epoch or str(Publication.objects.get().epoch), version, now - age, now - 900, 0, 0)
    valkey.hset(GATEWAYS_KEY, name, msgspec.msgpack.encode(value))


def test_where_a_change_has_arrived(valkey: redis.Redis) -> None:
    member = make.member(make.org(), "viewer")
    web = make.client(member.user)
    url = f"/api/v1/orgs/{member.org.slug}/gateways"
    services.publish()
    change = announce("keys")
    report(valkey, "a", 1)
    report(valkey, "b", 1)
    report(valkey, "silent", 1, age=30)
    report(valkey, "gone", 1, age=70)
    report(valkey, "stranger", 99, epoch="another")
    expected = {"applied": 0, "total": 4, "missing": ["a", "b", "silent", "stranger"]}
    assert web.get(url, {"change": change}).json() == expected
    services.publish()
    report(valkey, "a", 2)
    expected = {"applied": 1, "total": 4, "missing": ["b", "silent", "stranger"]}
    assert web.get(url, {"change": change}).json() == expected

    answer = web.get(url).json()
    assert answer["version_wanted"] == 2
    assert [(each["gateway"], each["applied"], each["alive"]) for each in answer["items"]] == [
        ("a", True, True),
        ("b", False, True),
        ("silent", False, False),
        ("stranger", False, True),
    ]
    assert web.get(url, {"version": 1}).json()["items"][1]["applied"] is True
    services.tidy()
    assert sorted(valkey.hkeys(GATEWAYS_KEY)) == [b"a", b"b", b"silent", b"stranger"]


def test_gateways_refuses_what_it_does_not_know(valkey: redis.Redis) -> None:
    member = make.member(make.org(), "viewer")
    web = make.client(member.user)
    url = f"/api/v1/orgs/{member.org.slug}/gateways"
    assert web.get(url, {"change": 10**9}).status_code == 404
    assert web.get(url, {"change": "x"}).status_code == 400
    assert web.get(url, {"change": 1, "version": 1}).status_code == 400
    assert make.client(make.user()).get(url).status_code == 404


@pytest.mark.django_db(transaction=True)
@pytest.mark.threat("K4")
def test_concurrent_publishers_and_revocations_lose_nothing(valkey: redis.Redis) -> None:
    """Keys are made and revoked while several publishers run; afterwards Valkey holds exactly what the table says, and every
    change's version was published at or after its commit."""
    owner = make.member(make.org(), "owner")
    keys = [make.key(owner)[0] for _ in range(24)]
    seen: list[int] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def publisher() -> None:
        try:
            while not done.is_set():
                version = services.publish()
                if version is not None:
                    seen.append(version)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    def revoker(mine: list) -> None:
        try:
            for key in mine:
                with transaction.atomic():
                    key.revoked_at = timezone.now()
                    key.save(update_fields=["revoked_at"])
                    Change.objects.create(topic="keys")
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    publishers = [threading.Thread(target=publisher) for _ in range(3)]
    revokers = [threading.Thread(target=revoker, args=(keys[at:20:4],)) for at in range(4)]
    for thread in [*publishers, *revokers]:
        thread.start()
    for thread in revokers:
        thread.join()
    done.set()
    for thread in publishers:
        thread.join()
    services.publish()

    assert errors == []
    assert len(seen) == len(set(seen)), "a version was given out twice"
    assert not Change.objects.filter(version=None).exists()
    assert {key.key_id for key in published(valkey).keys} == {str(key.pk) for key in keys[20:]}
    assert published(valkey).version == Publication.objects.get().version
