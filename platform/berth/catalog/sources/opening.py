"""From an import's row to its source."""

from __future__ import annotations

from django.conf import settings

from berth.catalog.credentials import s3_access, token_for
from berth.catalog.models import ImportFile, ModelImport
from berth.catalog.sources.hub import HubSource
from berth.catalog.sources.path import PathSource
from berth.catalog.sources.s3 import S3Source
from berth.catalog.sources.source import Listing, RemoteFile, Source, SourceRefused
from berth.catalog.sources.upload import UploadSource
from berth.catalog.sources.url import UrlSource


def open_source(run: ModelImport) -> Source:
    """Raises SourceRefused and OutboundRefused for what is wrong with the request."""
    asked, pattern = run.request, run.request.get("files", "")
    if run.credential is None and run.request.get("credential"):
        raise SourceRefused(
            "credential_gone", "The credential that this import used was deleted. Start it again with another."
        )
    match run.source:
        case "hub":
            endpoint = asked.get("endpoint") or settings.HUB_ENDPOINT
            token = token_for(run.credential, endpoint)
            return HubSource(endpoint, asked["repository"], asked["revision"], pattern=pattern, token=token)
        case "s3":
            if run.credential is None:
                raise SourceRefused(
                    "credential_missing", "An S3 address needs a credential. Add one first.", field="credential"
                )
            return S3Source(asked["uri"], s3_access(run.credential), pattern=pattern)
        case "url":
            host = run.credential.host if run.credential else ""
            token = token_for(run.credential, f"https://{host}") if run.credential else ""
            return UrlSource(asked["urls"], token=token, host=host)
        case "path":
            return PathSource(asked["path"], settings.IMPORT_ROOTS, pattern=pattern)
        case "upload":
            return _upload(run)
    raise SourceRefused("source_unknown", "There is no such source.", field="source")


def _upload(run: ModelImport) -> UploadSource:
    rows = list(ImportFile.objects.for_org(run.org_id).filter(run=run).order_by("name"))
    listing = Listing(tuple(remote_file(row) for row in rows), "")
    return UploadSource(run.pk, {row.name: row.pk for row in rows}, listing)


def remote_file(row: ImportFile) -> RemoteFile:
    return RemoteFile(row.name, row.location or row.name, row.size, row.sha256, row.tag)
