"""A put to a bucket that is killed at any moment is gone on with, not begun anew; what nobody goes on with is removed."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from berth.catalog import housekeeping
from berth.catalog.errors import StoreUnavailable
from berth.catalog.s3_multipart import checksum
from berth.catalog.s3_store import Keys, S3Store
from tests.seaweed import BUCKET, KEY_ID, SECRET, Seaweed, client

PART = 5 << 20  # the least that S3 takes for a part that is not the last
PARTS = 5
CONTENT = random.Random(11).randbytes((PARTS - 1) * PART + 4321)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
FUTURE = timedelta(days=2)


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"{hashlib.sha256(request.node.name.encode()).hexdigest()[:16]}/"


@pytest.fixture
def made(s3: Seaweed, tmp_path: Path, prefix: str) -> Callable[[], S3Store]:
    """A store as each process makes its own."""
    return lambda: S3Store(
        BUCKET,
        prefix=prefix,
        endpoint=s3.endpoint,
        keys=Keys(KEY_ID, SECRET),
        incoming=tmp_path / "incoming",
        part=PART,
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(CONTENT)
    return path


def put(store: S3Store, source: Path) -> list[int]:
    """Numbers of the parts that were sent."""
    sent: list[int] = []
    events = store._client.meta.events
    events.register("before-parameter-build.s3.UploadPart", lambda params, **_: sent.append(params["PartNumber"]))
    with store.stage(source) as staged:
        store.put(staged)
    return sorted(sent)


def killed(store: S3Store, source: Path, event: str, times: int = 1) -> None:
    """Puts in a process of its own that ends by SIGKILL when the client fires `event` for so many times."""
    child = os.fork()
    if child == 0:
        left = [times]

        def dies(**_: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        store._client.meta.events.register(event, dies)
        try:
            put(store, source)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it got through before the moment came"


def uploads(s3: Seaweed, prefix: str) -> list[dict[str, Any]]:
    asks: Any = client(s3)
    return list(asks.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix).get("Uploads", []))


def begun(s3: Seaweed, store: S3Store, parts: dict[int, bytes]) -> str:
    """An upload of the content's key, as another process would have left it."""
    asks: Any = client(s3)
    place = {"Bucket": BUCKET, "Key": store.key(DIGEST)}
    upload = str(asks.create_multipart_upload(**place, ChecksumAlgorithm="SHA256")["UploadId"])
    for number, body in parts.items():
        asks.upload_part(**place, UploadId=upload, PartNumber=number, Body=body, ChecksumSHA256=checksum(body))
    return upload


@pytest.mark.parametrize(
    ("event", "times"),
    [
        ("before-call.s3.CreateMultipartUpload", 1),
        ("after-call.s3.CreateMultipartUpload", 1),
        ("before-call.s3.UploadPart", 1),
        ("after-call.s3.UploadPart", 1),
        ("after-call.s3.UploadPart", 3),
        ("after-call.s3.UploadPart", PARTS),
        ("before-call.s3.CompleteMultipartUpload", 1),
        ("after-call.s3.CompleteMultipartUpload", 1),
    ],
)
def test_killed_at_this_moment_the_next_put_sends_only_what_is_missing(
    s3: Seaweed, made: Callable[[], S3Store], prefix: str, source: Path, event: str, times: int
) -> None:
    killed(made(), source, event, times)
    store = made()
    sent = put(store, source)
    arrived = times if event == "after-call.s3.UploadPart" else PARTS if "Complete" in event else 0
    assert len(sent) <= PARTS - arrived
    assert store.holds(DIGEST, len(CONTENT))
    assert store.verify(DIGEST)
    assert uploads(s3, prefix) == []


def test_killed_again_and_again_it_gets_further_each_time(made: Callable[[], S3Store], source: Path) -> None:
    for event in (
        "after-call.s3.CreateMultipartUpload",
        "after-call.s3.UploadPart",
        "before-call.s3.CompleteMultipartUpload",
    ):
        killed(made(), source, event)
    store = made()
    assert put(store, source) == []
    assert store.verify(DIGEST)


def test_parts_that_are_not_these_bytes_are_sent_again(s3: Seaweed, made: Callable[[], S3Store], source: Path) -> None:
    """Of another length (parts had another size then), or of another content."""
    store = made()
    right = CONTENT[PART : 2 * PART]
    begun(s3, store, {1: b"x" * PART, 2: right, 3: CONTENT[2 * PART : 3 * PART] + b"more"})
    assert put(store, source) == [1, 3, 4, 5]
    assert store.verify(DIGEST)


def test_of_several_uploads_it_goes_on_with_the_furthest(
    s3: Seaweed, made: Callable[[], S3Store], prefix: str, source: Path
) -> None:
    store = made()
    begun(s3, store, {})
    begun(s3, store, {1: CONTENT[:PART], 2: CONTENT[PART : 2 * PART]})
    begun(s3, store, {1: CONTENT[:PART]})
    assert put(store, source) == [3, 4, 5]
    assert store.verify(DIGEST)
    assert len(uploads(s3, prefix)) == 2
    assert store.drop_abandoned(datetime.now(UTC) + FUTURE) == 2
    assert uploads(s3, prefix) == []


def test_an_upload_that_somebody_aborts_meanwhile_is_begun_anew(
    s3: Seaweed, made: Callable[[], S3Store], source: Path
) -> None:
    store, asks = made(), client(s3)
    upload = begun(s3, store, {1: CONTENT[:PART]})
    place = {"Bucket": BUCKET, "Key": store.key(DIGEST)}
    gone: list[str] = []

    def aborted(params: dict[str, Any], **_: Any) -> None:
        if not gone:
            gone.append(params["UploadId"])
            asks.abort_multipart_upload(**place, UploadId=upload)  # type: ignore[attr-defined]

    store._client.meta.events.register("before-parameter-build.s3.CompleteMultipartUpload", aborted)
    put(store, source)
    assert gone == [upload]
    assert store.verify(DIGEST)


def test_trouble_of_the_service_leaves_what_has_arrived(
    s3: Seaweed, made: Callable[[], S3Store], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made()
    sent = store._client.upload_part

    def fails(**arguments: Any) -> Any:
        if arguments["PartNumber"] == PARTS:
            raise ConnectionError
        return sent(**arguments)

    monkeypatch.setattr(store._client, "upload_part", fails)
    with pytest.raises(ConnectionError):
        put(store, source)
    assert list(store.contents()) == []
    assert put(made(), source) == [PARTS]


def test_only_what_nobody_went_on_with_is_removed(
    s3: Seaweed, made: Callable[[], S3Store], prefix: str, source: Path
) -> None:
    store, now = made(), datetime.now(UTC)
    begun(s3, store, {1: CONTENT[:PART]})
    assert store.drop_abandoned(now - housekeeping.PUT_GIVEN_UP) == 0
    assert len(uploads(s3, prefix)) == 1
    assert store.drop_abandoned(now + FUTURE) == 1
    assert store.drop_abandoned(now + FUTURE) == 0
    assert uploads(s3, prefix) == []
    assert put(store, source) == [1, 2, 3, 4, 5]


def test_other_prefixes_are_left_alone(s3: Seaweed, made: Callable[[], S3Store], tmp_path: Path) -> None:
    asks: Any = client(s3)
    place = {"Bucket": BUCKET, "Key": "somebody-elses/object"}
    upload = asks.create_multipart_upload(**place)["UploadId"]
    made().drop_abandoned(datetime.now(UTC) + FUTURE)
    asks.list_parts(**place, UploadId=upload)
    asks.abort_multipart_upload(**place, UploadId=upload)


def test_a_service_that_ends_every_upload_is_told_as_unavailable(made: Callable[[], S3Store], source: Path) -> None:
    store = made()

    def aborted(params: dict[str, Any], **_: Any) -> None:
        store._client.abort_multipart_upload(Bucket=BUCKET, Key=store.key(DIGEST), UploadId=params["UploadId"])

    store._client.meta.events.register("before-parameter-build.s3.CompleteMultipartUpload", aborted)
    with pytest.raises(StoreUnavailable):
        put(store, source)
