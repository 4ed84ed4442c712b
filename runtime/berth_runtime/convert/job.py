"""What a conversion is told, what it says on the way, and what it leaves: JSON files with a format number."""

from __future__ import annotations

import msgspec

from berth_runtime.spec import ModelFile

JOB_FORMAT = 1
RESULT_FORMAT = 1


class ConversionJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One new set of files out of another. The same job in the same folder goes on where it was interrupted."""

    format: int
    job: str
    files: tuple[ModelFile, ...]  # GGUF: the shards in order
    target_format: str  # "gguf", "safetensors", "onnx"
    target: str  # "Q4_K_M", "F16", "GPTQ W4A16" …
    work_dir: str  # the result, its progress and its journal are written here
    threads: int = 1
    lifeline: str | None = None  # lock file of the supervisor: when it is free, the job stops


class Progress(msgspec.Struct, frozen=True):
    """`progress.json`, written at least every 2 s while something moves."""

    step: str  # "verifying", "quantizing", "hashing", "measuring"
    done: int  # of `total`, in bytes or in tokens
    total: int
    updated_at: float  # Unix seconds


class Fallback(msgspec.Struct, frozen=True):
    """Tensors that could not have the type which the target's name promises."""

    wanted: str
    given: str
    row: int  # elements of a row, which is what did not fit
    tensors: int
    examples: tuple[str, ...]


class MadeFile(msgspec.Struct, frozen=True):
    name: str
    role: str
    size: int  # bytes
    sha256: str


class ConversionResult(msgspec.Struct, frozen=True):
    """`result.json`, which exists once everything in it is true."""

    format: int
    files: tuple[MadeFile, ...]
    fallbacks: tuple[Fallback, ...] = ()
    types: dict[str, int] = {}  # how many tensors have which type
    requantized: bool = False  # the source was quantized already: errors add up
    tool: str = ""  # program and version, for the cache and for people


class Failed(msgspec.Struct, frozen=True):
    """`failure.json`."""

    reason: str  # a stable code
    message: str  # for people
