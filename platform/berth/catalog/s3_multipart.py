"""A large content on its way into a bucket, in parts, each with a checksum that the service compares.

What has arrived is remembered by the service alone: whoever puts the same content again, after a crash or on another machine, finds the
upload under its key, compares each part with the bytes at hand, and sends only what is missing or differs. Two at once do no harm: equal
keys mean equal bytes, and the object is created once.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final

from botocore.exceptions import ClientError

from berth.catalog.files import Staged

MOST_PARTS: Final = 10_000
AT_ONCE: Final = 4
GONE: Final = {"NoSuchUpload", "404"}
THERE: Final = {"412", "PreconditionFailed", "409", "ConditionalRequestConflict"}
FULL: Final = {"QuotaExceeded", "EntityTooLarge", "InsufficientStorage", "507"}


class UploadGone(Exception):
    """The upload was completed or aborted by somebody else meanwhile."""


def checksum(content: bytes) -> str:
    """As S3 writes a SHA-256."""
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def put_in_parts(client: Any, place: Mapping[str, Any], staged: Staged, part: int) -> None:
    """Goes on with the upload that is under way for this key, or begins one. `place`: Bucket and Key. `part`: bytes, more where 10,000
    parts would not do. Interrupted, it leaves what has arrived. Raises UploadGone, and ClientError as boto3 does."""
    part = max(part, -(-staged.size // MOST_PARTS))
    upload, arrived = _under_way(client, place) or (_begun(client, place), {})
    try:
        parts = _sent(client, {**place, "UploadId": upload}, staged, part, arrived)
        client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*")
    except ClientError as error:
        if code_of(error) in GONE:
            raise UploadGone from None
        if code_of(error) in THERE | FULL:  # nobody goes on with it; in a full bucket its parts are in the way
            abort(client, place, upload)
        raise


def abandoned(client: Any, bucket: str, prefix: str, before: datetime) -> Iterator[tuple[dict[str, str], str]]:
    """Place and id of each upload below `prefix` that was begun before, and got no part since."""
    pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix)
    for page in pages:
        for upload in page.get("Uploads", []):
            place = {"Bucket": bucket, "Key": upload["Key"]}
            if upload["Initiated"] < before and not _moved_since(client, place, upload["UploadId"], before):
                yield place, upload["UploadId"]


def abort(client: Any, place: Mapping[str, Any], upload: str) -> None:
    """Harmless for one that is gone."""
    try:
        client.abort_multipart_upload(**place, UploadId=upload)
    except ClientError as error:
        if code_of(error) not in GONE:
            raise


def _begun(client: Any, place: Mapping[str, Any]) -> str:
    return str(client.create_multipart_upload(**place, ChecksumAlgorithm="SHA256")["UploadId"])


def _under_way(client: Any, place: Mapping[str, Any]) -> tuple[str, dict[int, dict[str, Any]]] | None:
    """The upload of this key that has got furthest, with its parts by their numbers."""
    answer = client.list_multipart_uploads(Bucket=place["Bucket"], Prefix=place["Key"])
    ours = [each["UploadId"] for each in answer.get("Uploads", []) if each["Key"] == place["Key"]]
    found = [(upload, arrived) for upload in ours if (arrived := _parts(client, place, upload)) is not None]
    return max(found, key=lambda each: (len(each[1]), each[0]), default=None)


def _parts(client: Any, place: Mapping[str, Any], upload: str) -> dict[int, dict[str, Any]] | None:
    """None: it is gone."""
    try:
        pages = client.get_paginator("list_parts").paginate(**place, UploadId=upload)
        return {each["PartNumber"]: each for page in pages for each in page.get("Parts", [])}
    except ClientError as error:
        if code_of(error) in GONE:
            return None
        raise


def _moved_since(client: Any, place: Mapping[str, Any], upload: str, before: datetime) -> bool:
    arrived = _parts(client, place, upload) or {}
    return any(each["LastModified"] >= before for each in arrived.values())


def _sent(
    client: Any, upload: Mapping[str, Any], staged: Staged, part: int, arrived: Mapping[int, dict[str, Any]]
) -> list[dict[str, Any]]:
    """All parts, in order, as completing wants them."""
    with staged.path.open("rb") as file, ThreadPoolExecutor(AT_ONCE) as pool:

        def send(number: int) -> dict[str, Any]:
            content = os.pread(file.fileno(), part, (number - 1) * part)
            told, there = checksum(content), arrived.get(number)
            if there is None or not _same(there, content, told):
                there = client.upload_part(**upload, PartNumber=number, Body=content, ChecksumSHA256=told)
            return {"PartNumber": number, "ETag": there["ETag"], "ChecksumSHA256": told}

        return list(pool.map(send, range(1, -(-staged.size // part) + 1)))


def _same(there: Mapping[str, Any], content: bytes, told: str) -> bool:
    """By its checksum, or, of a service that tells none, by the MD5 that an ETag usually is; what is neither is sent again."""
    if there["Size"] != len(content):
        return False
    if there.get("ChecksumSHA256"):
        return bool(there["ChecksumSHA256"] == told)
    return bool(there["ETag"].strip('"') == hashlib.md5(content, usedforsecurity=False).hexdigest())
