"""What an organisation can deploy: a model, its immutable versions, and the artefacts that engines load."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from berth.orgs.models import User
from berth.orgs.tenancy import OrgOwned


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
    """One checksummed set of files. Never changed after it is made."""

    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    source = models.CharField(max_length=16)  # "sample", "path"
    licence = models.CharField(max_length=80, blank=True)
    facts = models.JSONField()  # berth.catalog.facts.ModelFacts
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["model", "number"], name="model_version_number_once")]

    def __str__(self) -> str:
        return f"v{self.number}"


class Artefact(OrgOwned):
    """A file set an engine can load."""

    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="artefacts")
    format = models.CharField(max_length=16)  # "gguf"
    quantization = models.CharField(max_length=16)  # "Q4_1", "F16" …
    engines = ArrayField(models.CharField(max_length=16))
    size = models.BigIntegerField()  # bytes, all files
    facts = models.JSONField()  # berth.catalog.facts.ArtefactFacts

    class Meta:
        constraints = [models.UniqueConstraint(fields=["version", "format", "quantization"], name="artefact_once")]

    def __str__(self) -> str:
        return f"{self.format} {self.quantization}"


class ArtefactFile(OrgOwned):
    """A file of an artefact. Its content is found by digest in the store; the name is what the engine should see."""

    artefact = models.ForeignKey(Artefact, on_delete=models.PROTECT, related_name="files")
    name = models.CharField(max_length=128)
    role = models.CharField(max_length=16)  # "weights"
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
