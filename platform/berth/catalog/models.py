"""What an organisation can deploy: a model, its immutable versions, and the artefacts that engines load."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from berth.catalog.conversion.models import Conversion
from berth.catalog.import_models import ImportFile, ImportPart, ModelImport, SourceCredential
from berth.catalog.store_models import StorageQuota, StoredFile
from berth.orgs.models import User
from berth.orgs.tenancy import OrgOwned

__all__ = [
    "Artefact",
    "ArtefactFile",
    "Conversion",
    "ImportFile",
    "ImportPart",
    "Model",
    "ModelImport",
    "ModelVersion",
    "SourceCredential",
    "StorageQuota",
    "StoredFile",
]


class Model(OrgOwned):
    """A named thing. The name is part of URLs, never of paths."""

    name = models.CharField(max_length=63)
    description = models.CharField(max_length=400, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["org", "name"], name="model_name_once"),
            models.CheckConstraint(
                condition=models.Q(name__regex=r"^[a-z0-9][a-z0-9._-]{0,62}$"), name="model_name_form"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class ModelVersion(OrgOwned):
    """One checksummed set of files. Never changed after it is made, which the database sees to; only `deleted_at` is set, when
    the files go but a revision of old still names the version."""

    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    source = models.CharField(max_length=16)  # "sample", "path", "upload", "hub", "s3", "url"
    origin = models.CharField(max_length=400, blank=True)  # where exactly: "org/name@<commit>", "s3://bucket/prefix"
    # Of an adapter: the version it is loaded with. None: a whole model, or an adapter whose base is not here.
    base = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="adapters")
    digest = models.CharField(
        max_length=64, blank=True
    )  # of names and digests of all files; the same files are one version
    notes = models.JSONField(default=list)  # [{code, message, params}]: what the intake noticed and did not refuse
    licence = models.CharField(max_length=80, blank=True)
    facts = models.JSONField()  # berth.catalog.facts.ModelFacts
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    deleted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["model", "number"], name="model_version_number_once")]

    def __str__(self) -> str:
        return f"v{self.number}"


class Artefact(OrgOwned):
    """A file set an engine can load."""

    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="artefacts")
    format = models.CharField(max_length=16)  # "gguf", "safetensors", "onnx"; adapters: "lora", "lora-gguf"
    quantization = models.CharField(max_length=16)  # "Q4_1", "F16" …
    engines = ArrayField(models.CharField(max_length=16))  # those that load it as a model; none for an adapter
    size = models.BigIntegerField()  # bytes, all files
    facts = models.JSONField()  # berth.catalog.facts.ArtefactFacts
    adapter = models.JSONField(null=True, blank=True)  # berth.catalog.facts.AdapterFacts, of an adapter
    # What it was made of by a conversion, and how far its predictions are from that: perplexity_change, divergence (nats a token),
    # agreement … None: it came in as it is, so it is its own reference.
    made_from = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="made")
    quality = models.JSONField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["version", "format", "quantization"], name="artefact_once")]

    def __str__(self) -> str:
        return f"{self.format} {self.quantization}"


class ArtefactFile(OrgOwned):
    """A file of an artefact. Its content is found by digest in the store; the name is what the engine should see."""

    artefact = models.ForeignKey(Artefact, on_delete=models.PROTECT, related_name="files")
    name = models.CharField(max_length=128)
    # "weights", "index", "config", "tokenizer", "template", "generation", "adapter", "data", "licence"
    role = models.CharField(max_length=16)
    size = models.BigIntegerField()  # bytes
    sha256 = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["artefact", "name"], name="artefact_file_once"),
            models.CheckConstraint(
                condition=models.Q(name__regex=r"^[A-Za-z0-9._-]{1,128}$"), name="artefact_file_name_form"
            ),
        ]

    def __str__(self) -> str:
        return self.name
