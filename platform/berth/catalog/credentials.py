"""An organisation's keys to places where its models are: made, listed without their secrets, removed, opened for an import."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings
from django.db import IntegrityError, transaction

from berth.catalog.models import SourceCredential
from berth.catalog.sealing import SealBroken, seal, unseal
from berth.catalog.sources.s3 import S3Access
from berth.catalog.sources.source import SourceRefused
from berth.orgs.models import Organisation, User
from berth.orgs.tenancy import new_id
from berth.web.errors import ApiError, Conflict, NotFound
from berth.web.outbound import read_url

NAME_FORM: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_PLAIN: Final = re.compile(r"[\x21-\x7e]{1,512}")
_REGION: Final = re.compile(r"[a-z0-9-]{1,32}")
AMAZON: Final = "https://s3.{region}.amazonaws.com"


def create_credential(
    org: Organisation,
    actor: User,
    *,
    name: str,
    kind: str,
    secret: str,
    key_id: str = "",
    endpoint: str = "",
    region: str = "",
    host: str = "",
) -> SourceCredential:
    """`kind` s3: `key_id`, `secret`, `region`, `endpoint` (empty: Amazon's); hub: `secret` is a token for `endpoint` (empty: the
    installation's hub); bearer: `secret` is a token for `host`. Raises ApiError, Conflict."""
    if not NAME_FORM.fullmatch(name):
        raise ApiError(
            "invalid_name",
            "A credential's name is like a model's: lower-case letters, digits, dots, dashes.",
            field="name",
            status=422,
        )
    for field, value in (("secret", secret), ("key_id", key_id)):
        if (value or field == "secret" or kind == "s3") and not _PLAIN.fullmatch(value):
            raise ApiError("invalid", "This must be 1 to 512 visible ASCII characters.", field=field, status=422)
    content = {"secret": secret}
    if kind == "s3":
        region = region or "us-east-1"
        if not _REGION.fullmatch(region):
            raise ApiError("invalid", "A region looks like eu-central-1.", field="region", status=422)
        endpoint = (endpoint or AMAZON.format(region=region)).rstrip("/")
        content |= {"key_id": key_id, "endpoint": endpoint, "region": region}
        host = _host_of(endpoint, "endpoint")
    elif kind == "hub":
        content["endpoint"] = (endpoint or settings.HUB_ENDPOINT).rstrip("/")
        host = _host_of(content["endpoint"], "endpoint")
    else:
        host = _host_of(f"https://{host}", "host")
    row_id = new_id()
    row = SourceCredential(
        pk=row_id,
        org=org,
        name=name,
        kind=kind,
        host=host,
        hint=(key_id or secret)[-4:] if len(key_id or secret) >= 12 else "",
        sealed=seal(content, org_id=org.pk, row_id=row_id),
        created_by=actor,
    )
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        raise Conflict(
            "name_taken", "There is a credential of this name. Choose another, or delete that one first.", field="name"
        ) from None
    return row


def _host_of(url: str, field: str) -> str:
    """Raises ApiError for what is no place that Berth goes to. The path is part of nothing: S3 and the hub live at the root or below it."""
    try:
        target = read_url(url)
    except ApiError as error:
        raise ApiError(error.code, error.message, field=field, status=422) from None
    if urlsplit(url).query:
        raise ApiError("outbound_url", "An endpoint has no query.", field=field, status=422)
    return target.host


def delete_credential(org: Organisation, name: str) -> None:
    """Imports that use it fail the next time they need it. Raises NotFound."""
    if not SourceCredential.objects.for_org(org).filter(name=name).delete()[0]:
        raise NotFound("credential")


def find_credential(org: Organisation, name: str, kind: str) -> SourceCredential:
    """Raises ApiError."""
    row = SourceCredential.objects.for_org(org).filter(name=name).first()
    if row is None or row.kind != kind:
        raise ApiError(
            "credential_unknown",
            f"There is no credential of this name for this kind of source ({kind}).",
            field="credential",
            status=422,
        )
    return row


def _opened(row: SourceCredential) -> dict[str, str]:
    try:
        return unseal(bytes(row.sealed), org_id=row.org_id, row_id=row.pk)
    except SealBroken:
        raise SourceRefused(
            "credential_unreadable",
            f"The credential {row.name} cannot be opened any more. Delete it and enter it anew.",
            field="credential",
        ) from None


def s3_access(row: SourceCredential) -> S3Access:
    """Raises SourceRefused."""
    told = _opened(row)
    return S3Access(told["key_id"], told["secret"], told["endpoint"], told["region"])


def token_for(row: SourceCredential | None, url: str) -> str:
    """The token, if it was given for that host; empty without a credential. Raises SourceRefused."""
    if row is None:
        return ""
    if read_url(url).host != row.host:
        raise SourceRefused(
            "credential_other_host",
            f"The credential {row.name} is for {row.host}, and is sent nowhere else.",
            field="credential",
        )
    return _opened(row)["secret"]
