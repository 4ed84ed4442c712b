"""Imports on their way: what was asked for, which files belong to it, how far they are, and the credentials for where they are."""

from __future__ import annotations

from django.db import models

from berth.orgs.models import User
from berth.orgs.tenancy import OrgOwned


class ImportSource(models.TextChoices):
    UPLOAD = "upload"
    HUB = "hub"
    S3 = "s3"
    URL = "url"
    PATH = "path"


class ImportState(models.TextChoices):
    RECEIVING = "receiving"  # an upload whose parts are not all there
    QUEUED = "queued"
    LISTING = "listing"  # which files, of which size
    FETCHING = "fetching"
    VERIFYING = "verifying"
    STORING = "storing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL = (ImportState.DONE, ImportState.FAILED, ImportState.CANCELLED)


class CredentialKind(models.TextChoices):
    S3 = "s3"  # access key id and secret key
    HUB = "hub"  # a token of the hub
    BEARER = "bearer"  # for a URL


class SourceCredential(OrgOwned):
    """An organisation's own key to a place where its models are. The secret is sealed and leaves only towards that place."""

    name = models.CharField(max_length=63)
    kind = models.CharField(max_length=16, choices=CredentialKind)
    host = models.CharField(max_length=253)  # the one host, or bucket endpoint, that the secret may be sent to
    hint = models.CharField(max_length=8)  # the last characters, so that people know which one it is
    sealed = models.BinaryField()
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["org", "name"], name="source_credential_name_once")]

    def __str__(self) -> str:
        return self.name


class ModelImport(OrgOwned):
    """One import. Whoever holds the lease moves it on; a lease that ran out is anybody's."""

    name = models.CharField(max_length=63)  # of the model it will be
    source = models.CharField(max_length=16, choices=ImportSource)
    request = models.JSONField()  # what was asked for, without secrets
    licence = models.CharField(max_length=80, blank=True)
    description = models.CharField(max_length=400, blank=True)
    credential = models.ForeignKey(SourceCredential, null=True, on_delete=models.SET_NULL, related_name="+")
    base = models.ForeignKey("catalog.ModelVersion", null=True, on_delete=models.SET_NULL, related_name="+")
    state = models.CharField(max_length=16, choices=ImportState, default=ImportState.QUEUED)
    origin = models.CharField(max_length=400, blank=True)
    bytes_total = models.BigIntegerField(null=True)  # None: not known yet
    bytes_done = models.BigIntegerField(default=0)
    rate = models.BigIntegerField(null=True)  # bytes a second, lately
    code = models.CharField(max_length=64, blank=True)  # why it failed, or what it waits for
    message = models.CharField(max_length=600, blank=True)
    params = models.JSONField(default=dict)
    version = models.ForeignKey("catalog.ModelVersion", null=True, on_delete=models.SET_NULL, related_name="+")
    cancelled_at = models.DateTimeField(null=True)  # asked for
    finished_at = models.DateTimeField(null=True)
    failures = models.PositiveIntegerField(default=0)  # in a row, for back-off
    check_at = models.DateTimeField(auto_now_add=True, db_index=True)  # not worked on before
    lease_token = models.UUIDField(null=True)
    lease_until = models.DateTimeField(null=True)
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(name__regex=r"^[a-z0-9][a-z0-9._-]{0,62}$"), name="model_import_name_form"
            )
        ]

    def __str__(self) -> str:
        return f"{self.source} -> {self.name}"

    @property
    def final(self) -> bool:
        return self.state in FINAL


class ImportFile(OrgOwned):
    """A file of an import."""

    run = models.ForeignKey(ModelImport, on_delete=models.CASCADE, related_name="files")
    name = models.CharField(max_length=128)
    location = models.CharField(max_length=2000, blank=True)  # at the source: path in the repository, key, URL, path
    size = models.BigIntegerField(null=True)  # bytes; None: the source did not say
    sha256 = models.CharField(max_length=64, blank=True)  # as the source promises, or as it was found
    tag = models.CharField(max_length=200, blank=True)  # the source's mark of this content (ETag)
    done = models.BigIntegerField(default=0)  # bytes

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "name"], name="import_file_once"),
            models.CheckConstraint(
                condition=models.Q(name__regex=r"^[A-Za-z0-9._-]{1,128}$"), name="import_file_name_form"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class ImportPart(OrgOwned):
    """A part of an uploaded file that has arrived."""

    file = models.ForeignKey(ImportFile, on_delete=models.CASCADE, related_name="parts")
    number = models.PositiveIntegerField()  # from 0
    size = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["file", "number"], name="import_part_once")]

    def __str__(self) -> str:
        return str(self.number)
