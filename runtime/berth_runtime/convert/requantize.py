"""GGUF to GGUF in another mixture: tensor by tensor, in bounded memory, and after an interruption from the last whole tensor."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Final

import gguf
import msgspec
import numpy as np

from berth_runtime.convert.ggufhead import Planned, aligned, alignment_of, head
from berth_runtime.convert.job import RESULT_FORMAT, ConversionJob, ConversionResult, Fallback, MadeFile
from berth_runtime.convert.mixtures import MIXTURES, Choice, Shape, choose
from berth_runtime.convert.workdir import WorkDir
from berth_runtime.failure import Failure

_SLAB_ELEMENTS: Final = 8 << 20  # of a tensor at once: 32 MiB as float32
_SYNC_BYTES: Final = 64 << 20  # between two entries in the journal
_FULL_PRECISION: Final = ("F32", "F16", "BF16", "F64")


class _Journal(msgspec.Struct, frozen=True):
    """How much of the file is surely written, and of which file."""

    head: str  # digest of its head
    tensors: int
    size: int  # bytes


class _Work(msgspec.Struct, frozen=True):
    source: Any  # the reader's tensor
    planned: Planned
    choice: Choice | None


def requantize(job: ConversionJob, folder: WorkDir) -> ConversionResult:
    """Writes the file and returns what it is. Raises Failure with a reason that people can act on."""
    if job.target not in MIXTURES:
        raise Failure("target_unknown", f"GGUF files are made as {', '.join(MIXTURES)}; {job.target} is none of these.")
    readers = [gguf.GGUFReader(file.path) for file in job.files]
    if any(reader.byte_order != "I" for reader in readers):
        raise Failure("source_unsupported", "The file is big-endian GGUF, which no engine here can load.")
    work = _plan(readers, job.target)
    name = f"model-{job.target}.gguf"
    beginning = head(readers[0], (each.planned for each in work), MIXTURES[job.target])
    draft = folder.path / f".{name}"
    _write(draft, beginning, work, alignment_of(readers[0]), job.threads, folder)
    size, digest = _digest(draft, folder)
    draft.replace(folder.path / name)
    return ConversionResult(
        format=RESULT_FORMAT,
        files=(MadeFile(name, "weights", size, digest),),
        fallbacks=_fallbacks(work),
        types=_types(work),
        requantized=any(each.source.tensor_type.name not in _FULL_PRECISION for each in work),
        tool=f"libgguf {importlib.metadata.version('libgguf')}",
    )


def shape_of(reader: gguf.GGUFReader, names: set[str]) -> Shape:
    """What of the metadata decides types."""
    architecture = _value(reader, "general.architecture", "")
    heads = _largest(_value(reader, f"{architecture}.attention.head_count", 1))
    return Shape(
        layers=int(_value(reader, f"{architecture}.block_count", 0)),
        heads_per_kv_head=heads // max(1, _largest(_value(reader, f"{architecture}.attention.head_count_kv", heads))),
        experts=int(_value(reader, f"{architecture}.expert_count", 0)),
        tied="output.weight" not in names,
    )


def _value(reader: gguf.GGUFReader, name: str, otherwise: Any) -> Any:
    field = reader.get_field(name)
    return otherwise if field is None else field.contents()


def _largest(value: Any) -> int:
    """Some models have another number in each layer."""
    return int(max(value)) if isinstance(value, list) else int(value)


def _plan(readers: list[gguf.GGUFReader], mixture: str) -> list[_Work]:
    sources = [tensor for reader in readers for tensor in reader.tensors]
    shape = shape_of(readers[0], {tensor.name for tensor in sources})
    alignment = alignment_of(readers[0])
    work, offset = [], 0
    for tensor in sources:
        dims = tuple(int(each) for each in tensor.shape)
        choice = choose(mixture, tensor.name, dims, shape)
        kind = gguf.GGMLQuantizationType[choice.type] if choice else _kept(tensor)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        size = int(tensor.n_elements) // block * block_bytes
        work.append(_Work(tensor, Planned(tensor.name, dims, int(kind), size, offset), choice))
        offset = aligned(offset + size, alignment)
    return work


def _kept(tensor: Any) -> gguf.GGMLQuantizationType:
    """Norms and biases stay what they are."""
    return gguf.GGMLQuantizationType(tensor.tensor_type)


def _write(draft: Path, beginning: bytes, work: list[_Work], alignment: int, threads: int, folder: WorkDir) -> None:
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    total = sum(each.planned.size for each in work)
    with os.fdopen(fd, "r+b") as file, ThreadPoolExecutor(threads) as pool:
        journal = _resumed(file, beginning, folder)
        done = sum(each.planned.size for each in work[: journal.tensors])
        unsynced = 0
        for number, each in enumerate(work[journal.tensors :], journal.tensors + 1):
            folder.progress("quantizing", done, total)
            for part in _converted(each, pool, threads):
                file.write(part)
                done += len(part)
                folder.progress("quantizing", done, total)
            file.write(b"\0" * (aligned(each.planned.size, alignment) - each.planned.size))
            unsynced += each.planned.size
            if unsynced >= _SYNC_BYTES or number == len(work):
                unsynced = 0
                _note(file, _Journal(journal.head, number, file.tell()), folder)


def _resumed(file: BinaryIO, beginning: bytes, folder: WorkDir) -> _Journal:
    """Where to go on: behind what an interrupted run of the same job surely wrote, else behind a new head."""
    digest = hashlib.sha256(beginning).hexdigest()
    journal = folder.load("journal.json", _Journal)
    if journal and journal.head == digest and os.fstat(file.fileno()).st_size >= journal.size:
        file.seek(journal.size)
        file.truncate()
        return journal
    file.seek(0)
    file.truncate()
    file.write(beginning)
    journal = _Journal(digest, 0, len(beginning))
    _note(file, journal, folder)
    return journal


def _note(file: BinaryIO, journal: _Journal, folder: WorkDir) -> None:
    """The data is on the disk before the journal says so."""
    file.flush()
    os.fdatasync(file.fileno())
    folder.store("journal.json", journal)


def _converted(each: _Work, pool: ThreadPoolExecutor, threads: int) -> Iterator[bytes]:
    """The tensor's bytes in its new type, a few slabs of rows at once."""
    source, target = each.source, gguf.GGMLQuantizationType(each.planned.type)
    if source.tensor_type == target:
        yield source.data.tobytes()
        return
    row = each.planned.dims[0]
    rows = source.data.reshape(-1, source.data.shape[-1])
    step = max(1, _SLAB_ELEMENTS // row)
    slabs = [rows[start : start + step] for start in range(0, len(rows), step)]
    for start in range(0, len(slabs), threads):
        yield from pool.map(lambda slab: _slab(slab, source.tensor_type, target, row), slabs[start : start + threads])


def _slab(rows: Any, source: gguf.GGMLQuantizationType, target: gguf.GGMLQuantizationType, row: int) -> bytes:
    numbers = gguf.quants.dequantize(rows, source).reshape(-1, row).astype(np.float32, copy=False)
    if not np.isfinite(numbers).all():
        raise Failure("source_damaged", "The model's weights contain numbers that are not finite, so it cannot work.")
    if target.name in _FULL_PRECISION:
        return gguf.quants.quantize(numbers, target).tobytes()
    # Weights of one for every column make the quantizer search each block's scale for the least squared error instead of taking
    # it from the largest numbers: 5 to 20 % less error at the same size (docs/conversion.md), for twice the time.
    even = np.ones(row, dtype=np.float32)
    packed: np.ndarray[Any, Any] = _libgguf().quantize_rows(np.ascontiguousarray(numbers), target, even)
    return packed.tobytes()


def _libgguf() -> Any:
    """Imported where it is needed: it exists for some machines only."""
    try:
        import libgguf
    except ImportError:
        raise Failure(
            "converter_missing",
            "This machine has no GGUF quantizer (libgguf). Install requirements/convert.txt, or convert elsewhere and upload the file.",
        ) from None
    return libgguf


def _digest(path: Path, folder: WorkDir) -> tuple[int, str]:
    size, digest, done = path.stat().st_size, hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(8 << 20):
            digest.update(block)
            done += len(block)
            folder.progress("hashing", done, size)
    return size, digest.hexdigest()


def _fallbacks(work: list[_Work]) -> tuple[Fallback, ...]:
    found: dict[tuple[str, str, int], list[str]] = {}
    for each in work:
        if each.choice and each.choice.fell_back:
            found.setdefault((each.choice.wanted, each.choice.type, each.planned.dims[0]), []).append(each.planned.name)
    return tuple(
        Fallback(wanted, given, row, len(names), tuple(names[:3]))
        for (wanted, given, row), names in sorted(found.items())
    )


def _types(work: list[_Work]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for each in work:
        name = gguf.GGMLQuantizationType(each.planned.type).name
        counted[name] = counted.get(name, 0) + 1
    return counted
