"""What the intake says of a set of files. Crosses from the caged reader to Berth as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from berth.catalog.facts import AdapterFacts, ArtefactFacts, ModelFacts


class Note(msgspec.Struct, frozen=True):
    """Noticed, and no reason to refuse."""

    code: str
    message: str
    params: dict[str, Any] = {}


class Verdict(msgspec.Struct, frozen=True):
    """Sound files. `roles`: what each file is for; a file that no engine needs is in `unneeded` and not kept."""

    format: str  # "gguf", "safetensors", "onnx", "lora", "lora-gguf"
    quantization: str
    model: ModelFacts | None  # None: an adapter, whose facts are its base's
    artefact: ArtefactFacts
    engines: list[str]
    roles: dict[str, str]
    templates: dict[str, str] = {}
    adapter: AdapterFacts | None = None
    licence: str = ""
    notes: list[Note] = []
    unneeded: list[str] = []


class Question(msgspec.Struct, frozen=True):
    """Files by name, where each lies, and the base of an adapter where it is known."""

    files: dict[str, str]
    base: ModelFacts | None = None


class Fault(msgspec.Struct, frozen=True):
    code: str
    message: str
    file: str | None
    params: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True):
    """One of the two."""

    verdict: Verdict | None = None
    fault: Fault | None = None
