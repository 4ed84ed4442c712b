"""The caged reader: sound models of every layout give their facts, hostile ones a named refusal."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from berth.catalog.intake.refused import Refused
from berth.catalog.intake.support import LLAMACPP
from berth.catalog.intake.verdict import Verdict
from berth.catalog.intake.verify import verify
from tests.platform.catalog import hub_files as hub
from tests.platform.catalog.gguf_bytes import LLAMA, STRING, U32, File, TensorInfo, entry
from tests.platform.catalog.hub_files import CONFIG, TOKENIZER_CONFIG, as_json, header_of, packed, shapes


def judged(files: hub.Files, folder: Path, base: Verdict | None = None) -> Verdict:
    return verify(hub.written(files, folder), base.model if base else None)


def split(count: int = 3, **changes: Any) -> hub.Files:
    """A GGUF model in parts with one tensor each."""
    files = {}
    for number in range(count):
        tensor = TensorInfo("token_embd.weight" if number == 0 else f"blk.{number}.weight", (8, 8))
        own = [
            entry("split.no", U32, number),
            entry("split.count", U32, count),
            entry("split.tensors.count", U32, changes.get("told", count)),
        ]
        metadata = [*(LLAMA if number == 0 else LLAMA[:1]), *own]
        files[f"tiny-{number + 1:05d}-of-{count:05d}.gguf"] = File(metadata=metadata, tensors=[tensor]).packed()
    return files


class TestSound:
    def test_one_file(self, tmp_path: Path) -> None:
        verdict = judged(hub.model(), tmp_path)
        assert (verdict.format, verdict.quantization) == ("safetensors", "BF16")
        assert verdict.engines == ["vllm", "tensorrt_llm"]
        assert verdict.model is not None
        elements = sum(a * (b[0] if b else 1) for a, *b in shapes().values())
        assert verdict.model.parameters == elements
        assert verdict.artefact.tensor_bytes == 2 * elements
        assert verdict.artefact.token_bytes == 2 * elements - 2 * hub.VOCABULARY * hub.HIDDEN + 2 * hub.HIDDEN
        assert {"user", "system"} <= set(verdict.artefact.chat_template_accepts)
        assert verdict.model.has_chat_template
        assert verdict.roles == {
            "config.json": "config", "model.safetensors": "weights", "tokenizer.json": "tokenizer", "tokenizer_config.json": "tokenizer",
        }  # fmt: skip
        assert verdict.notes == []

    def test_shards_and_what_nobody_needs(self, tmp_path: Path) -> None:
        verdict = judged(hub.sharded(README__md=b"# A model"), tmp_path)
        assert verdict.roles["model.safetensors.index.json"] == "index"
        assert [name for name, role in verdict.roles.items() if role == "weights"] == [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ]
        assert verdict.unneeded == ["README.md"]

    def test_template_in_a_file_of_its_own_or_in_a_list(self, tmp_path: Path) -> None:
        bare = as_json(TOKENIZER_CONFIG | {"chat_template": None})
        assert judged(
            hub.model(tokenizer_config__json=bare, chat_template__jinja=hub.TEMPLATE.encode()), tmp_path / "a"
        ).templates
        named = as_json(TOKENIZER_CONFIG | {"chat_template": [{"name": "default", "template": hub.TEMPLATE}]})
        assert judged(hub.model(tokenizer_config__json=named), tmp_path / "b").templates == {"default": hub.TEMPLATE}

    def test_a_missing_template_and_an_unknown_architecture_are_noted(self, tmp_path: Path) -> None:
        bare = as_json(TOKENIZER_CONFIG | {"chat_template": None})
        strange = as_json(CONFIG | {"architectures": ["TinyForCausalLM"]})
        verdict = judged(hub.model(tokenizer_config__json=bare, config__json=strange), tmp_path)
        assert verdict.model is not None and not verdict.model.has_chat_template
        assert {note.code for note in verdict.notes} == {"assumed", "chat_template_missing", "architecture_untested"}
        assert verdict.engines == ["vllm"]

    @pytest.mark.parametrize(
        ("settings", "dtype", "expected"),
        [
            ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "I32", "GPTQ-Int4"),
            ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "I32", "AWQ-INT4"),
            ({"quantization_config": {"quant_method": "fp8"}}, "F8_E4M3", "FP8"),
            ({"quantization_config": {"quant_method": "compressed-tensors"}}, "I8", "INT8 W8A8"),
        ],
    )
    def test_what_it_is_quantized_with(
        self, settings: dict[str, Any], dtype: str, expected: str, tmp_path: Path
    ) -> None:
        width = {"I32": 4, "F8_E4M3": 1, "I8": 1}[dtype]
        files = hub.model(
            config__json=as_json(CONFIG | settings), model__safetensors=packed(header_of(shapes(), dtype, width))
        )
        assert judged(files, tmp_path).quantization == expected

    @pytest.mark.parametrize(
        ("recipe", "expected"), [(b"GPTQModifier: {}", "INT4 W4A16"), (b"AWQModifier: {}", "AWQ-INT4")]
    )
    def test_four_bits_beside_a_larger_table(self, recipe: bytes, expected: str, tmp_path: Path) -> None:
        """Of a small model most bytes are embeddings, which stay as they were; what made the rest is told by the recipe."""
        header, offset = header_of(shapes(), "BF16", 2), 0
        for name, each in header.items():
            kind, width = ("BF16", 2) if "embed" in name else ("I32", 4)
            count = (each["data_offsets"][1] - each["data_offsets"][0]) // 2
            size = count * width if "embed" in name else width
            shape = each["shape"] if "embed" in name else [1]
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
            offset += size
        told = as_json(CONFIG | {"quantization_config": {"quant_method": "compressed-tensors"}})
        files = hub.model(config__json=told, model__safetensors=packed(header)) | {"recipe.yaml": recipe}
        assert judged(files, tmp_path).quantization == expected

    def test_a_split_gguf(self, tmp_path: Path) -> None:
        verdict = judged(split(), tmp_path)
        assert list(verdict.roles) == [f"tiny-0000{each}-of-00003.gguf" for each in (1, 2, 3)]
        assert verdict.engines == ["llamacpp"]  # Ollama takes one file
        assert verdict.model is not None and verdict.model.parameters == 3 * 64
        assert verdict.artefact.tensor_bytes == 3 * 256

    def test_a_lora_with_and_without_its_base(self, tmp_path: Path) -> None:
        base = judged(hub.model(), tmp_path / "base")
        verdict = judged(hub.adapter(), tmp_path / "a", base)
        facts = verdict.adapter
        assert facts is not None and verdict.format == "lora"
        assert (facts.rank, facts.target_modules, facts.layers) == (4, ("q_proj", "v_proj"), 2)
        assert facts.engines == ("vllm", "llamacpp")
        assert (facts.base_name, verdict.engines) == ("meta-llama/Llama-3.1-8B", [])
        alone = judged(hub.adapter(base_model_name_or_path="/home/me/llama"), tmp_path / "b")
        assert alone.adapter is not None and (alone.adapter.base_name, alone.adapter.engines) == ("", ("vllm",))
        dora = judged(hub.adapter(use_dora=True), tmp_path / "c", base)
        assert [note.code for note in dora.notes] == ["adapter_needs_merging"]

    def test_a_lora_for_llama_cpp(self, tmp_path: Path) -> None:
        metadata = [LLAMA[0], entry("general.type", STRING, "adapter"), entry("adapter.type", STRING, "lora")]
        tensors = [
            TensorInfo("blk.0.attn_q.weight.lora_a", (8, 4)),
            TensorInfo("blk.0.attn_q.weight.lora_b", (4, 8), offset=128),
        ]
        verdict = judged({"a.gguf": File(metadata=metadata, tensors=tensors).packed()}, tmp_path)
        assert verdict.format == "lora-gguf" and verdict.adapter is not None
        assert (verdict.adapter.rank, verdict.adapter.engines) == (4, ("llamacpp",))

    def test_an_onnx_folder(self, tmp_path: Path) -> None:
        verdict = judged(hub.onnx(), tmp_path)
        assert (verdict.format, verdict.engines) == ("onnx", ["onnxruntime"])
        assert verdict.roles["model.onnx.data"] == "data"
        assert verdict.model is not None and verdict.model.layers == hub.LAYERS


def header(**changes: Any) -> dict[str, Any]:
    made = header_of(shapes())
    first = next(iter(made))
    made[first] |= changes
    return made


class Bad:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mknod, (self.marker,)


def archive(content: bytes = b"x", name: str = "archive/data.pkl") -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(name, content)
    return buffer.getvalue()


def with_config(**changes: Any) -> hub.Files:
    return hub.model(config__json=as_json(CONFIG | changes))


def with_template(text: str) -> hub.Files:
    return hub.model(tokenizer_config__json=as_json(TOKENIZER_CONFIG | {"chat_template": text}))


def cut(content: bytes, by: int) -> bytes:
    return content[:-by]


SOUND = packed(header_of(shapes()))
INDEX = "model.safetensors.index.json"
SHARDS = hub.sharded()
FIRST = "model.embed_tokens.weight"
PICKLE = pickle.dumps({"weights": [1, 2, 3]})


def nested(depth: int) -> bytes:
    """A graph within an attribute of a node of a graph, and so on."""
    graph = b""
    for _ in range(depth):
        graph = hub.field(1, hub.field(5, hub.field(6, graph)))
    return hub.field(7, graph)


NO_HEAD = {key: value for key, value in header().items() if key != "lm_head.weight"}
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
OPS = {"model": {"decoder": {"filename": "model.onnx", "session_options": {"custom_ops_library": "x"}}}}

HOSTILE: dict[str, tuple[hub.Files, str, str | None]] = {
    # safetensors
    "bad mark": (hub.model(model__safetensors=b"NOPE" * 100), "not_safetensors", "model.safetensors"),
    "header of 2^62": (hub.model(model__safetensors=packed(header(), length=1 << 62)), "not_safetensors", "model.safetensors"),
    "header of 1 TiB": (hub.model(model__safetensors=packed(header(), length=1 << 39)), "safetensors_header", "model.safetensors"),
    "header beyond the end": (hub.model(model__safetensors=packed(header(), length=1 << 20)), "safetensors_truncated", "model.safetensors"),
    "overlap": (hub.model(model__safetensors=packed(header() | {"x": header()[FIRST]})), "safetensors_overlap", "model.safetensors"),
    "gap": (
        hub.model(model__safetensors=packed(NO_HEAD)), "safetensors_gap", "model.safetensors",
    ),
    "cut off": (hub.model(model__safetensors=cut(SOUND, 10)), "safetensors_truncated", "model.safetensors"),
    "something behind": (hub.model(model__safetensors=SOUND + archive()), "safetensors_trailing_data", "model.safetensors"),
    "size is not the shape's": (hub.model(model__safetensors=packed(header(shape=[1, 1]))), "safetensors_size", "model.safetensors"),
    "shape that overflows": (
        hub.model(model__safetensors=packed(header(shape=[1 << 33, 1 << 33, 1 << 62]))), "safetensors_size", "model.safetensors",
    ),
    "negative offsets": (hub.model(model__safetensors=packed(header(data_offsets=[-4, 4]))), "safetensors_offsets", "model.safetensors"),
    "unknown dtype": (hub.model(model__safetensors=packed(header(dtype="PICKLE"))), "safetensors_dtype", "model.safetensors"),
    "key twice": (
        hub.model(model__safetensors=packed(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{}}', b"\0")),
        "json_double_key", "model.safetensors",
    ),
    "tensor name with a terminal's escape": (
        hub.model(model__safetensors=packed({"\x1b[2J": header()[FIRST]})), "safetensors_tensor_name", "model.safetensors",
    ),
    "header nested 100,000 deep": (
        hub.model(model__safetensors=packed(b'{"a":' + b"[" * 100_000, b"")), "json_nesting", "model.safetensors",
    ),
    "15 MiB of header": (
        hub.model(model__safetensors=packed(b'{"a":[' + b"{}," * (5 << 20) + b"0]}", b"")), "json_too_large", "model.safetensors",
    ),
    "no tensors": (hub.model(model__safetensors=packed({}, b"")), "safetensors_empty", "model.safetensors"),
    # sets of files
    "missing shard": (
        {k: v for k, v in SHARDS.items() if "-00002-of" not in k}, "shard_missing", "model-00002-of-00002.safetensors",
    ),
    "missing index": ({k: v for k, v in SHARDS.items() if k != INDEX}, "index_missing", INDEX),
    "missing index and shard": (
        {k: v for k, v in SHARDS.items() if k != INDEX and "-00001-of" not in k}, "shard_missing", "model-00001-of-00002.safetensors",
    ),
    "index that leads outside": (SHARDS | {INDEX: as_json({"weight_map": {"a": "../../etc/passwd"}})}, "index_path", INDEX),
    "shard of another model": (
        SHARDS | {"model-00002-of-00002.safetensors": packed(header_of({"other": (2, 2)}))}, "index_mismatch", None,
    ),
    "no configuration": (hub.model(config__json=None), "config_missing", "config.json"),
    "no tokenizer": (hub.model(tokenizer__json=None), "tokenizer_missing", "tokenizer.json"),
    "tokenizer of another model": (
        hub.model(tokenizer__json=as_json(hub.TOKENIZER | {"added_tokens": [{"id": 999, "content": "</s>"}]})),
        "token_out_of_range", "tokenizer.json",
    ),
    "weights of another width": (with_config(hidden_size=64), "config_mismatch", "config.json"),
    "no weights": ({"config.json": as_json(CONFIG)}, "no_weights", None),
    "empty file": (hub.model(config__json=b""), "file_empty", "config.json"),
    # code
    "pickle with a model's name": (hub.model(model__safetensors=PICKLE), "pickle", "model.safetensors"),
    "PyTorch's zip with a model's name": (hub.model(model__safetensors=archive(PICKLE)), "archive", "model.safetensors"),
    "pytorch_model.bin": (hub.model(model__safetensors=None, pytorch_model__bin=archive(PICKLE)), "pickle", "pytorch_model.bin"),
    "a module": (hub.model(modeling__py=b"import os"), "code_file", "modeling.py"),
    "a library": (hub.model(ops__so=b"\x7fELF"), "code_file", "ops.so"),
    "a library named as text": (hub.model(README__md=b"\x7fELF" + b"\0" * 64), "code_file", "README.md"),
    "a compiled engine": (hub.model(rank0__engine=b"x"), "compiled_engine", "rank0.engine"),
    "NumPy's pickle": (hub.model(weights__npy=b"\x93NUMPY"), "pickle", "weights.npy"),
    "auto_map": (with_config(auto_map={"AutoModel": "modeling_x.Model"}), "remote_code", "config.json"),
    "auto_map in a tower": (with_config(vision_config={"a": [{"auto_map": {"AutoConfig": "x--y.Z"}}]}), "remote_code", "config.json"),
    "auto_map in the tokenizer": (
        hub.model(tokenizer_config__json=as_json(TOKENIZER_CONFIG | {"auto_map": {"AutoTokenizer": ["t.T", None]}})),
        "remote_code", "tokenizer_config.json",
    ),
    "a module in a plain value": (with_config(attention="org/repo--kernels.Attention"), "remote_code", "config.json"),
    "trust_remote_code": (with_config(trust_remote_code=True), "remote_code", "config.json"),
    "an address": (with_config(weights="http://169.254.169.254/latest"), "address_in_config", "config.json"),
    # JSON
    "100 MB of JSON": (hub.model(config__json=b'{"a":"' + b"x" * 100_000_000 + b'"}'), "json_too_large", "config.json"),
    "JSON nested 100,000 deep": (hub.model(config__json=b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "json_nesting", "config.json"),
    "JSON cut off": (hub.model(config__json=as_json(CONFIG)[:-4]), "json_broken", "config.json"),
    "number of a million digits": (hub.model(config__json=b'{"hidden_size":' + b"9" * 1_000_000 + b"}"), "json_broken", "config.json"),
    "four billion layers": (with_config(num_hidden_layers=1 << 32), "config_absurd", "config.json"),
    "zero heads": (with_config(num_attention_heads=0), "config_incomplete", "config.json"),
    "tokenizer of 70 MB": (hub.model(tokenizer__json=b'{"model":"' + b"x" * 70_000_000 + b'"}'), "json_too_large", "tokenizer.json"),
    # templates
    "template that reads globals": (
        with_template("{{ cycler.__init__.__globals__.os.popen('id').read() }}"), "unsafe_chat_template", "tokenizer_config.json",
    ),
    "template that recurses": (
        with_template("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "unsafe_chat_template", "tokenizer_config.json",
    ),
    "template that never ends": (
        with_template(LOOPS),
        "unsafe_chat_template", "tokenizer_config.json",
    ),
    "template of 400 MB": (with_template("{{ 'A' * 400000000 }}"), "unsafe_chat_template", "tokenizer_config.json"),
    "template that includes": (with_template("{% include '/etc/passwd' %}"), "unsafe_chat_template", "tokenizer_config.json"),
    "template of 65 KiB": (with_template("x" * 66_000), "chat_template_too_large", "tokenizer_config.json"),
    # GGUF
    "tensor count 2^63": ({"x.gguf": File(tensor_count=1 << 63).packed()}, "gguf_tensor_count", "x.gguf"),
    "alignment of 2^31": (
        {"x.gguf": File(metadata=[*LLAMA, entry("general.alignment", U32, 1 << 31)]).packed()}, "gguf_alignment", "x.gguf",
    ),
    "string beyond the file": (
        {"x.gguf": File(metadata=[*LLAMA, hub.as_json({})[:0] + struct.pack("<Q", 1 << 62)]).packed()}, "gguf_key_length", "x.gguf",
    ),
    "a part alone": ({k: v for k, v in split().items() if "-00001-of" in k}, "shard_missing", "tiny-00002-of-00003.gguf"),
    "parts that tell another number": (split(told=9), "gguf_parts", "tiny-00001-of-00003.gguf"),
    "two models": ({"a.gguf": File().packed(), "b.gguf": File().packed()}, "several_models", "a.gguf"),
    # adapters
    "rank of another adapter": (hub.adapter(told=2), "adapter_rank", "adapter_model.safetensors"),
    "rank 100,000": (hub.adapter(told=100_000), "adapter_rank", "adapter_config.json"),
    "no LoRA": (hub.adapter(peft_type="PROMPT_TUNING"), "adapter_kind", "adapter_config.json"),
    "modules that are a path": (hub.adapter(target_modules=["../../x"]), "adapter_modules", "adapter_config.json"),
    "adapter without weights": (
        {"adapter_config.json": hub.adapter()["adapter_config.json"]}, "adapter_weights_missing", "adapter_model.safetensors",
    ),
    # ONNX
    "data outside": (hub.onnx(model__onnx=hub.graph("../../etc/passwd")), "path_in_file", "model.onnx"),
    "data at an absolute path": (hub.onnx(model__onnx=hub.graph("/etc/passwd")), "path_in_file", "model.onnx"),
    "data beyond the end": (hub.onnx(model__onnx=hub.graph(length=1 << 40)), "onnx_data_truncated", "model.onnx.data"),
    "data missing": (hub.onnx(model__onnx=hub.graph("other.data")), "onnx_data_missing", "other.data"),
    "graph cut off": (hub.onnx(model__onnx=cut(hub.graph(), 3)), "onnx_graph", "model.onnx"),
    "graphs within graphs": (hub.onnx(model__onnx=nested(40)), "onnx_graph", "model.onnx"),
    "a library to load": (
        hub.onnx(genai_config__json=as_json(OPS)),
        "remote_code", "genai_config.json",
    ),
    "graph at a path": (
        hub.onnx(genai_config__json=as_json({"model": {"decoder": {"filename": "../model.onnx"}}})), "path_in_file", "genai_config.json",
    ),
}  # fmt: skip


@pytest.mark.threat("M1")
@pytest.mark.threat("M2")
@pytest.mark.threat("M3")
@pytest.mark.threat("M4")
@pytest.mark.threat("M5")
@pytest.mark.threat("M6")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_their_fault(name: str, tmp_path: Path) -> None:
    """The reader's limits (448 MiB of its own memory, 5 s of processor time) are limits of its process, so none was passed."""
    files, code, file = HOSTILE[name]
    with pytest.raises(Refused) as refused:
        judged(files, tmp_path)
    assert refused.value.code == code, refused.value.message
    if file is not None:
        assert refused.value.file == file
    assert refused.value.message.isprintable()
    assert "\x1b" not in refused.value.message


@pytest.mark.threat("M8")
def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    base = judged(hub.model(), tmp_path / "base")
    for number, files in enumerate([hub.adapter(hidden=64), hub.adapter() | {"adapter_model.safetensors": deep()}]):
        with pytest.raises(Refused) as refused:
            judged(files, tmp_path / str(number), base)
        assert refused.value.code == "adapter_base_mismatch"


def deep() -> bytes:
    return packed(
        header_of({"base_model.model.model.layers.77.self_attn.q_proj.lora_A.weight": (4, hub.HIDDEN)}, "F32", 4)
    )


@pytest.mark.threat("M6")
def test_links_are_not_followed(tmp_path: Path) -> None:
    places = hub.written(hub.model(config__json=None), tmp_path)
    (tmp_path / "elsewhere.json").write_bytes(as_json(CONFIG))
    (tmp_path / "config.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(Refused) as refused:
        verify(places | {"config.json": tmp_path / "config.json"})
    assert (refused.value.code, refused.value.file) == ("file_not_regular", "config.json")


@pytest.mark.threat("M6")
@pytest.mark.parametrize(
    "name", ["../x.gguf", "a\\..\\b.gguf", "a/b.gguf", "", "..", "x" * 129, "a\nb.gguf", "-\x1b.gguf"]
)
def test_names_are_bare(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(File().packed())
    with pytest.raises(Refused) as refused:
        verify({name: path})
    assert refused.value.code == "file_name"


@pytest.mark.threat("M1")
def test_nothing_in_a_pickle_runs(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    with pytest.raises(Refused):
        judged(hub.model(model__safetensors=pickle.dumps(Bad(str(marker)))), tmp_path / "files")
    assert not marker.exists()


def test_the_list_of_llama_cpps_architectures_is_that_of_its_library() -> None:
    from gguf.constants import MODEL_ARCH_NAMES

    assert set(MODEL_ARCH_NAMES.values()) >= LLAMACPP
    assert json.loads(as_json(CONFIG)) == CONFIG
