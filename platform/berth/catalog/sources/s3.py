"""An organisation's own bucket. Requests are signed here (version 4, in the query) and go through the one guarded door, so the
endpoint that a tenant names is never dialled by a library of its own."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote_plus

import boto3
from botocore.config import Config

from berth.catalog.sources import web
from berth.catalog.sources.choosing import choose
from berth.catalog.sources.source import Listing, Opened, RemoteFile, Source, SourceRefused, SourceTrouble

MOST_ANSWER: Final = 4 << 20
MOST_PAGES: Final = 20
SIGNED_SECONDS: Final = 900
URI: Final = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(?P<key>[\w!.*'()/ =+@,-]{0,900})", re.ASCII
)
_OBJECT: Final = re.compile(r"<Contents>(.*?)</Contents>", re.DOTALL)


@dataclass(frozen=True)
class S3Access:
    key_id: str
    secret: str = field(repr=False)
    endpoint: str  # https://s3.eu-central-1.amazonaws.com, or whatever the organisation uses
    region: str


class S3Source(Source):
    def __init__(self, uri: str, access: S3Access, *, pattern: str = "") -> None:
        told = URI.fullmatch(uri)
        if told is None or ".." in told["key"].split("/"):
            raise SourceRefused(
                "s3_uri", "An S3 address looks like s3://bucket/folder/ or s3://bucket/folder/model.gguf.", field="uri"
            )
        self.uri, self.bucket, self.key, self.pattern = uri, told["bucket"], told["key"], pattern
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=access.endpoint,
            region_name=access.region,
            aws_access_key_id=access.key_id,
            aws_secret_access_key=access.secret,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )

    def listing(self) -> Listing:
        one = bool(self.key) and not self.key.endswith("/")
        prefix = self.key if one or not self.key else f"{self.key.rstrip('/')}/"
        found = list(self._objects(prefix))
        if one and not any(key == self.key for key, _, _ in found):  # a folder, named without its slash
            prefix = f"{self.key}/"
            found = list(self._objects(prefix))
            one = False
        files = [
            RemoteFile(key.rpartition("/")[2], key if one else key.removeprefix(prefix), size, "", tag)
            for key, size, tag in found
            if (key == self.key if one else not key.endswith("/"))
        ]
        if not files:
            raise SourceRefused("source_not_found", f"There is nothing at {self.uri}.", field="uri")
        chosen = files if one else choose(files, self.pattern)
        base = "" if one else prefix
        return Listing(
            files=tuple(
                RemoteFile(each.name, f"{base}{each.location}", each.size, each.sha256, each.tag) for each in chosen
            ),
            origin=self.uri,
        )

    @contextmanager
    def open(self, file: RemoteFile, begin: int, end: int | None) -> Iterator[Opened]:
        url = self._signed("get_object", Bucket=self.bucket, Key=file.location)
        with web.opened(
            url, begin, end, name=file.name, headers={"If-Match": f'"{file.tag}"'} if file.tag else None
        ) as opened:
            yield opened

    def _objects(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        token: str | None = None
        for _ in range(MOST_PAGES):
            more = {"ContinuationToken": token} if token else {}
            url = self._signed("list_objects_v2", Bucket=self.bucket, Prefix=prefix, **more)
            with web.asked(url) as reply:
                text = reply.whole(MOST_ANSWER).decode("utf-8", "replace")
                if reply.status != 200:
                    raise self._refusal(reply.status, text, reply.target.host)
            encoded = _part(text, "EncodingType") == "url"
            for entry in _OBJECT.findall(text):
                key, size, tag = _part(entry, "Key"), _part(entry, "Size"), _part(entry, "ETag")
                key = unquote_plus(key) if encoded else key
                if size.isdigit():
                    yield key, int(size), tag.strip('"')[:200]
            token = _part(text, "NextContinuationToken") or None
            if token is None:
                return
        raise SourceRefused(
            "s3_too_many_files", "There are more objects than a model has files. Name a folder of it.", field="uri"
        )

    def _refusal(self, status: int, text: str, host: str) -> SourceRefused | SourceTrouble:
        code = _part(text, "Code")
        if status == 403 or code in {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"}:
            return SourceRefused(
                "s3_forbidden",
                f"{host} does not let this credential list {self.bucket}. Check key, secret, region, and that it may list and read.",
                params={"bucket": self.bucket, "host": host},
            )
        if code == "NoSuchBucket" or status == 404:
            return SourceRefused(
                "s3_no_bucket", f"{host} has no bucket {self.bucket}.", field="uri", params={"bucket": self.bucket}
            )
        return web.refusal(status, self.bucket, host)

    def _signed(self, act: str, **arguments: Any) -> str:
        return str(self._client.generate_presigned_url(act, Params=arguments, ExpiresIn=SIGNED_SECONDS))


def _part(text: str, name: str) -> str:
    found = re.search(rf"<{name}>([^<]{{0,2000}})</{name}>", text)
    return html.unescape(found[1]) if found else ""
