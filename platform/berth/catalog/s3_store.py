"""The store in a bucket of any service that speaks S3 with signatures of version 4.

    <prefix>sha256/ab/abcdef…

Large contents go up in parts (`s3_multipart.py`). An object is only ever created, never written over (`If-None-Match: *`).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from berth.catalog.errors import StoreFull, StoreUnavailable
from berth.catalog.files import CHUNK, Staged
from berth.catalog.s3_multipart import FULL, THERE, UploadGone, abandoned, abort, checksum, code_of, put_in_parts
from berth.catalog.store import GRANT_SECONDS, Content, Store, check_digest

PART: Final = 64 << 20  # bytes; larger where 10,000 parts would not do
_TRIES: Final = 3  # of a put whose upload somebody else ended
KEY_ID_FILE: Final = "s3_access_key_id"
KEY_FILE: Final = "s3_secret_access_key"
_ABSENT: Final = {"404", "NoSuchKey", "NotFound"}


@dataclass(frozen=True)
class Keys:
    id: str
    secret: str = field(repr=False)


def read_keys(secrets: Path) -> Keys | None:
    """The operator's keys from their files. None: boto3 looks where it always does (a role of the machine, say)."""
    key_id, secret = secrets / KEY_ID_FILE, secrets / KEY_FILE
    if key_id.is_file() and secret.is_file():
        return Keys(key_id.read_text().strip(), secret.read_text().strip())
    return None


class S3Store(Store):
    shares_aside = True

    def __init__(
        self,
        bucket: str,
        *,
        incoming: Path,
        prefix: str = "",
        endpoint: str | None = None,
        region: str = "us-east-1",
        keys: Keys | None = None,
        part: int = PART,
    ) -> None:
        self.bucket, self.prefix, self.incoming, self.part = bucket, prefix, incoming, part
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=region,
            aws_access_key_id=keys.id if keys else None,
            aws_secret_access_key=keys.secret if keys else None,
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": "path" if endpoint else "auto"},
                retries={"mode": "standard", "max_attempts": 5},
                connect_timeout=10,
                read_timeout=60,
                max_pool_connections=16,
            ),
        )

    def key(self, sha256: str) -> str:
        return f"{self.prefix}sha256/{check_digest(sha256)[:2]}/{sha256}"

    def local_path(self, sha256: str) -> None:
        check_digest(sha256)

    def grant(self, sha256: str, seconds: int = GRANT_SECONDS) -> str:
        place = self._at(sha256) | {"ResponseContentDisposition": "attachment"}
        return str(self._client.generate_presigned_url("get_object", Params=place, ExpiresIn=seconds))

    def holds(self, sha256: str, size: int) -> bool:
        with _told():
            try:
                return bool(self._client.head_object(**self._at(sha256))["ContentLength"] == size)
            except ClientError as error:
                if code_of(error) in _ABSENT:
                    return False
                raise

    def verify(self, sha256: str) -> bool:
        told = hashlib.sha256()
        try:
            for chunk in self.read(sha256):
                told.update(chunk)
        except FileNotFoundError:
            return False
        return told.hexdigest() == sha256

    def read(self, sha256: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        place = self._at(sha256)
        if end is not None and end <= begin:
            return
        if begin or end is not None:
            place["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"
        with _told():
            try:
                body = self._client.get_object(**place)["Body"]
            except ClientError as error:
                if code_of(error) in _ABSENT:
                    raise FileNotFoundError(sha256) from None
                if code_of(error) in {"InvalidRange", "416"}:
                    return
                raise
            yield from body.iter_chunks(CHUNK)

    def put(self, staged: Staged) -> None:
        """Interrupted, the next put of this content goes on with the parts that have arrived."""
        for _ in range(_TRIES):
            if self.holds(staged.sha256, staged.size):
                if self.verify(staged.sha256):
                    return
                self.remove(staged.sha256)  # damaged there: what was checked here takes its place
            with _told(), suppress(UploadGone):
                self._create(staged)
                return
        raise StoreUnavailable("NoSuchUpload")

    def _create(self, staged: Staged) -> None:
        try:
            if staged.size <= self.part:
                self._put_whole(staged)
            else:
                put_in_parts(self._client, self._at(staged.sha256), staged, self.part)
        except ClientError as error:
            if code_of(error) not in THERE:
                raise

    def drop_abandoned(self, before: datetime) -> int:
        with _told():
            given_up = list(abandoned(self._client, self.bucket, f"{self.prefix}sha256/", before))
            for place, upload in given_up:
                abort(self._client, place, upload)
            return len(given_up)

    def remove(self, sha256: str) -> None:
        with _told():
            self._client.delete_object(**self._at(sha256))

    def contents(self) -> Iterator[Content]:
        with _told():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=f"{self.prefix}sha256/"
            )
            for page in pages:
                for item in page.get("Contents", []):
                    name = item["Key"].rsplit("/", 1)[-1]
                    if len(name) == 64:
                        yield Content(check_digest(name), item["Size"])

    def put_aside(self, name: str, content: bytes) -> None:
        with _told():
            self._client.put_object(**self._aside(name), Body=content, ChecksumSHA256=checksum(content))

    def read_aside(self, name: str) -> bytes:
        with _told():
            try:
                return bytes(self._client.get_object(**self._aside(name))["Body"].read())
            except ClientError as error:
                if code_of(error) in _ABSENT:
                    raise FileNotFoundError(name) from None
                raise

    def drop_aside(self, prefix: str) -> None:
        with _told():
            place = self._aside(prefix)
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=place["Key"]):
                for item in page.get("Contents", []):
                    self._client.delete_object(Bucket=self.bucket, Key=item["Key"])

    def _aside(self, name: str) -> dict[str, Any]:
        return {"Bucket": self.bucket, "Key": f"{self.prefix}incoming/{name}"}

    def _at(self, sha256: str) -> dict[str, Any]:
        return {"Bucket": self.bucket, "Key": self.key(sha256)}

    def _put_whole(self, staged: Staged) -> None:
        self._client.put_object(
            **self._at(staged.sha256),
            Body=staged.path.read_bytes(),
            ChecksumSHA256=base64.b64encode(bytes.fromhex(staged.sha256)).decode(),
            IfNoneMatch="*",
        )


@contextmanager
def _told() -> Iterator[None]:
    """The service's trouble in our words; its own text may name keys."""
    try:
        yield
    except ClientError as error:
        if code_of(error) in FULL:
            raise StoreFull from None
        raise StoreUnavailable(code_of(error)) from None
    except BotoCoreError as error:
        raise StoreUnavailable(type(error).__name__) from None
