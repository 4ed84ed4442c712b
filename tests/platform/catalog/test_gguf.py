"""GGUF intake: hostile files are refused by the name of their fault, sound ones give exact facts."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings
from gguf import GGUFReader
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from berth.catalog.errors import Refused
from berth.catalog.facts import AttentionGroup
from berth.catalog.intake.gguf import read_gguf
from berth.catalog.intake.header import TENSOR_TYPES
from berth.catalog.sample import sample_path
from tests.platform.catalog.gguf_bytes import ARRAY, BOOL, LLAMA, STRING, U32, File, TensorInfo, array, entry, text

two = [TensorInfo("token_embd.weight", (8, 8)), TensorInfo("output.weight", (8, 8), offset=256)]


def long_string(length: int) -> bytes:
    return text("general.name") + struct.pack("<IQ", STRING, length)


def long_array(kind: int, count: int) -> bytes:
    return text("tokenizer.ggml.scores") + struct.pack("<IIQ", ARRAY, kind, count)


def nested(depth: int) -> bytes:
    return text("x") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", U32, 0)


HOSTILE = {
    "tensor count 2^63": (File(tensor_count=1 << 63), "gguf_tensor_count"),
    "metadata count 2^63": (File(metadata_count=1 << 63), "gguf_metadata_count"),
    "string of 2^62": (File(metadata=[*LLAMA, long_string(1 << 62)]), "gguf_string_length"),
    "string beyond the end": (File(metadata=[*LLAMA, long_string(1 << 20)]), "gguf_truncated"),
    "array of 2^40": (File(metadata=[*LLAMA, long_array(U32, 1 << 40)]), "gguf_array_length"),
    "array of 2^40 strings": (File(metadata=[*LLAMA, long_array(STRING, 1 << 40)]), "gguf_array_length"),
    "array of unknown type": (File(metadata=[*LLAMA, long_array(77, 1)]), "gguf_value_type"),
    "nested arrays": (File(metadata=[*LLAMA, nested(50)]), "gguf_nesting"),
    "unknown value type": (File(metadata=[*LLAMA, text("x") + struct.pack("<I", 99)]), "gguf_value_type"),
    "key twice": (File(metadata=[*LLAMA, LLAMA[0]]), "gguf_key"),
    "key not UTF-8": (File(metadata=[*LLAMA, text(b"\xff") + struct.pack("<IB", 0, 1)]), "gguf_key"),
    "key of 64 KiB": (File(metadata=[*LLAMA, entry("k" * 65536, U32, 1)]), "gguf_key_length"),
    "dimensions 2^32-1": (File(tensors=[TensorInfo("t", (2**32 - 1,) * 4)]), "gguf_tensor_size"),
    "five dimensions": (File(tensors=[TensorInfo("t", (2, 2, 2, 2, 2))]), "gguf_dimensions"),
    "no dimension": (File(tensors=[TensorInfo("t", ())]), "gguf_dimensions"),
    "empty tensor": (File(tensors=[TensorInfo("t", (0, 8))]), "gguf_shape"),
    "half a block": (File(tensors=[TensorInfo("t", (33,), kind=3)]), "gguf_shape"),
    "unknown tensor type": (File(tensors=[TensorInfo("t", (8, 8), kind=250)]), "gguf_tensor_type"),
    "offset past the end": (File(tensors=[TensorInfo("t", (8, 8), offset=1 << 40)]), "gguf_tensor_size"),
    "offset not aligned": (File(tensors=[TensorInfo("t", (8, 8), offset=4)]), "gguf_alignment"),
    "alignment of 3": (File(metadata=[*LLAMA, entry("general.alignment", U32, 3)]), "gguf_alignment"),
    "alignment of 0": (File(metadata=[*LLAMA, entry("general.alignment", U32, 0)]), "gguf_alignment"),
    "overlap": (File(tensors=[two[0], TensorInfo("b", (8, 8), offset=128)], data=b"\0" * 512), "gguf_overlap"),
    "gap": (File(tensors=[two[0], TensorInfo("b", (8, 8), offset=512)], data=b"\0" * 1024), "gguf_gap"),
    "name twice": (File(tensors=[two[0], TensorInfo(two[0].name, (8, 8), offset=256)], data=b"\0" * 512), "gguf_tensor_name"),
    "name too long": (File(tensors=[TensorInfo("t" * 128, (8, 8))]), "gguf_tensor_name"),
    "cut off": (File(data=b"\0" * 255), "gguf_truncated"),
    "something behind": (File(data=b"\0" * 256 + b"PK\x03\x04" * 16), "gguf_trailing_data"),
    "a pickle": (File(magic=b"\x80\x05\x95\x10"), "not_gguf"),
    "a zip": (File(magic=b"PK\x03\x04"), "not_gguf"),
    "version 1": (File(version=1), "gguf_version"),
    "big-endian": (File(version=3 << 24), "gguf_version"),
    "no tensors": (File(tensors=[], data=b""), "gguf_no_tensors"),
    "a shard": (File(metadata=[*LLAMA, entry("split.count", U32, 3)]), "gguf_shard"),
    "an adapter": (File(metadata=[*LLAMA, entry("general.type", STRING, "adapter")]), "gguf_not_a_model"),
    "no architecture": (File(metadata=list(LLAMA[1:])), "gguf_architecture"),
    "no layers": (File(metadata=[each for each in LLAMA if b"block_count" not in each]), "gguf_fact_missing"),
    "four billion layers": (
        File(metadata=[*(each for each in LLAMA if b"block_count" not in each), entry("llama.block_count", U32, 2**32 - 1)]),
        "gguf_fact_missing",
    ),
    "template of 64 KiB and one": (
        File(metadata=[*LLAMA, entry("tokenizer.chat_template", STRING, "x" * 65537)]),
        "chat_template_too_large",
    ),
}  # fmt: skip


@pytest.mark.threat("M1")
@pytest.mark.threat("M3")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_their_fault(name: str, tmp_path: Path) -> None:
    file, code = HOSTILE[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(file.packed())
    with pytest.raises(Refused) as refused:
        read_gguf(path)
    assert refused.value.code == code


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(File(tensors=two, data=b"\0" * 512).packed())
    model, artefact, template = read_gguf(path)
    assert (model.parameters, model.layers, model.vocabulary, template) == (128, 2, 8, None)
    assert model.attention == (AttentionGroup(2, 1, 4, 4),)
    assert artefact.tensor_bytes == 512
    assert artefact.token_bytes == 256 + 32  # the output matrix, and one row of the embedding table


def test_layers_are_grouped_by_their_cache(tmp_path: Path) -> None:
    """Layers without attention have no cache; a window counts for the layers that are marked, and for no other."""
    kept = [each for each in LLAMA if b"head_count_kv" not in each and b"block_count" not in each]
    file = File(
        metadata=[
            *kept,
            entry("llama.block_count", U32, 4),
            array("llama.attention.head_count_kv", U32, [2, 0, 2, 2]),
            entry("llama.attention.sliding_window", U32, 64),
            array("llama.attention.sliding_window_pattern", BOOL, [True, True, False, True]),
        ]
    )
    path = tmp_path / "x.gguf"
    path.write_bytes(file.packed())
    assert set(read_gguf(path)[0].attention) == {AttentionGroup(2, 2, 4, 4, 64), AttentionGroup(1, 2, 4, 4)}


@pytest.mark.parametrize(
    ("number", "pooling", "tasks"),
    [(0, None, ("generate",)), (1, "mean", ("embed",)), (2, "cls", ("embed",)), (3, "last", ("embed",)), (4, "rank", ("rerank",)),
     (9, None, ("generate",))],
)  # fmt: skip
def test_what_a_model_is_for_is_in_its_header(
    tmp_path: Path, number: int, pooling: str | None, tasks: tuple[str, ...]
) -> None:
    path = tmp_path / "file.gguf"
    path.write_bytes(File([*LLAMA, entry("llama.pooling_type", U32, number)]).packed())
    model, _, _ = read_gguf(path)
    assert (model.pooling, model.tasks) == (pooling, tasks)


def test_the_sample_agrees_with_the_library() -> None:
    path = sample_path()
    model, artefact, template = read_gguf(path)
    library = GGUFReader(path)
    assert artefact.tensor_bytes == sum(int(tensor.n_bytes) for tensor in library.tensors)
    assert model.parameters == sum(int(tensor.n_elements) for tensor in library.tensors) == 134_515_008
    assert (artefact.tensors, artefact.quantization) == (len(library.tensors), "Q4_1")
    assert model.vocabulary == len(library.fields["tokenizer.ggml.tokens"].data)
    assert template == library.fields["tokenizer.chat_template"].contents()


def test_tensor_types_agree_with_the_library() -> None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    for number, (name, block, size) in TENSOR_TYPES.items():
        assert GGMLQuantizationType(number).name == name
        assert GGML_QUANT_SIZES[GGMLQuantizationType(number)] == (block, size)


@pytest.mark.threat("M3")
@given(position=st.integers(0, 700), change=st.binary(min_size=1, max_size=12))
@hypothesis_settings(max_examples=300, deadline=None)
def test_changed_headers_are_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, position: int, change: bytes
) -> None:
    raw = bytearray(File(tensors=two, data=b"\0" * 512).packed())
    raw[position : position + len(change)] = change
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(raw)
    try:
        model, artefact, _ = read_gguf(path)
    except Refused:
        return
    assert 0 < artefact.tensor_bytes <= len(raw)
    assert model.parameters > 0


@pytest.mark.threat("M3")
def test_hostile_files_cost_neither_memory_nor_time(tmp_path: Path) -> None:
    """All of them together in a process that may have 256 MB and a second of processor time (limits, so that no clock is read)."""
    for number, (file, _) in enumerate(HOSTILE.values()):
        (tmp_path / f"{number}.gguf").write_bytes(file.packed())
    script = (
        "import sys, resource; from pathlib import Path\n"
        "from berth.catalog.intake.gguf import read_gguf\n"
        "from berth.catalog.errors import Refused\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (256 << 20,) * 2)\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "seconds = int(used.ru_utime + used.ru_stime) + 2\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))\n"
        "for path in Path(sys.argv[1]).iterdir():\n"
        "    try:\n        read_gguf(path)\n    except Refused:\n        continue\n    sys.exit(f'{path} was read')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={"PYTHONPATH": str(settings.PROJECT_DIR / "platform"), "DJANGO_SETTINGS_MODULE": "berth.settings"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
