"""How vLLM is started and understood. Its arguments are held against those of its own parser (tests/data/vllm-arguments.json)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth_runtime.engines.vllm import Vllm, arguments
from berth_runtime.failure import Failure
from berth_runtime.lines import Kept, LineFilter
from berth_runtime.prepare import model_folder
from berth_runtime.spec import Adapter, EngineMetrics, LaunchSpec
from tests.runtime.agents import SECRET, a_spec, file_of
from tests.runtime.engine_programs import program

KNOWN = json.loads((Path(__file__).resolve().parents[1] / "data" / "vllm-arguments.json").read_text())["options"]
TYPES = {"int": int, "float": float}


class Refused(Exception):
    """The parser does not take it."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise Refused(message)


def parser() -> Parser:
    """vLLM's arguments as its own parser takes them."""
    made = Parser(allow_abbrev=False)
    made.add_argument("model")
    for name, option in KNOWN.items():
        if name in ("--help", "--model") or not name.startswith("--"):
            continue
        if option["nargs"] == 0:
            made.add_argument(name, action="store_true")
        else:
            made.add_argument(name, nargs=option["nargs"], type=TYPES.get(option["type"] or "", str))
    return made


def checked(argv: list[str]) -> argparse.Namespace:
    """Raises Refused for what vLLM would refuse."""
    taken = parser().parse_args(argv)
    for name, option in KNOWN.items():
        value = getattr(taken, name.lstrip("-").replace("-", "_"), None)
        if option["choices"] and value not in (None, False, True) and str(value) not in option["choices"]:
            raise Refused(f"{name}: {value}")
    return taken


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = program(tmp_path / "vllm", "pass")
    monkeypatch.setenv("BERTH_VLLM", str(path))
    return path


def a_vllm_spec(folder: Path, **changes: Any) -> LaunchSpec:
    weights = folder / "model.safetensors"
    weights.write_bytes(b"x")
    file = msgspec.structs.replace(file_of(weights), name="model.safetensors")
    return a_spec(folder, files=(file,), engine="vllm", model_format="safetensors", **changes)


def an_adapter(folder: Path, name: str, rank: int) -> Adapter:
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(b"x")
    return Adapter(name, (msgspec.structs.replace(file_of(weights), name=weights.name),), rank)


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "slots": st.integers(1, 512),
        "context_length": st.integers(1, 1 << 20),
        "tensor_parallel": st.sampled_from([1, 2, 4, 8]),
        "pipeline_parallel": st.sampled_from([1, 2]),
        "quantization": st.sampled_from([None, "fp8", "awq_marlin", "gptq_marlin", "compressed-tensors"]),
        "kv_dtype": st.sampled_from([None, "fp8", "fp8_e4m3", "bfloat16"]),
        "memory_fraction": st.sampled_from([None, 0.5, 0.92]),
        "kv_cache_bytes": st.sampled_from([None, 1 << 30]),
        "max_batched_tokens": st.sampled_from([None, 2048]),
        "tool_parser": st.sampled_from([None, "hermes", "llama3_json", "mistral", "qwen3_coder"]),
        "reasoning_parser": st.sampled_from([None, "qwen3", "deepseek_r1"]),
        "prefix_cache": st.booleans(),
        "pooling": st.sampled_from([None, "mean", "cls", "last", "rank"]),
        "gpus": st.integers(0, 8),
    },
)


@given(changes=SPECS, ranks=st.lists(st.integers(1, 512), max_size=3))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_command_is_one_that_vllm_takes(tmp_path: Path, changes: dict[str, Any], ranks: list[int]) -> None:
    adapters = tuple(an_adapter(tmp_path, f"org/lora-{number}", rank) for number, rank in enumerate(ranks))
    spec = a_vllm_spec(tmp_path, adapters=adapters, **changes)
    taken = checked(["/models/m", *arguments(spec)])
    assert taken.model == "/models/m"
    assert taken.served_model_name == [spec.model_alias]
    assert taken.max_model_len == str(spec.context_length)
    assert taken.max_num_seqs == spec.slots
    assert (taken.tensor_parallel_size or 1, taken.pipeline_parallel_size or 1) == (
        spec.tensor_parallel,
        spec.pipeline_parallel,
    )
    assert taken.enable_prefix_caching is spec.prefix_cache and taken.no_enable_prefix_caching is not spec.prefix_cache
    if ranks:
        assert int(taken.max_lora_rank) >= max(ranks)
        assert [json.loads(module)["name"] for module in taken.lora_modules] == [a.name for a in adapters]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_nodes_of_a_replica_are_told_of_one_another(tmp_path: Path, vllm: Path, rank: int) -> None:
    shape = {
        "gpus": 8,
        "tensor_parallel": 8,
        "pipeline_parallel": 2,
        "nodes": 2,
        "node_rank": rank,
        "leader": "r-a-0.r-a",
    }
    spec = a_vllm_spec(tmp_path, host="127.8.8.8", **shape)
    argv = arguments(spec)
    taken = checked(["/models/m", *argv])
    assert (taken.nnodes, taken.node_rank, taken.master_addr) == (2, rank, "r-a-0.r-a")
    assert (taken.tensor_parallel_size, taken.pipeline_parallel_size) == (8, 2)
    assert taken.distributed_executor_backend == "mp"
    assert ("--uds" in argv) is (rank == 0), "only the first one is asked anything"
    command = Vllm().command(spec)
    assert ("--headless" in command) is (rank == 1)
    assert ("gate.py" in " ".join(command)) is (rank == 0)
    environment = Vllm().environment(spec)
    assert environment["VLLM_HOST_IP"] == "127.8.8.8", "by its own address, not by loopback"
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & environment.keys()
    alone = Vllm().environment(a_vllm_spec(tmp_path, gpus=8, tensor_parallel=8))
    assert (alone["VLLM_HOST_IP"], alone["NCCL_SOCKET_IFNAME"]) == ("127.0.0.1", "lo")


@pytest.mark.parametrize(
    "argv",
    [
        ["m", "--no-such-option"],
        ["m", "--max-num-seqs", "x"],
        ["m", "--kv-cache-dtype", "int2"],
        ["m", "--quantization", "q4"],
    ],
)
def test_what_vllm_does_not_take_would_be_seen(argv: list[str]) -> None:
    with pytest.raises(Refused):
        checked(argv)


@pytest.mark.threat("E1")
@pytest.mark.threat("M2")
@pytest.mark.threat("G6")
def test_what_is_private_is_forced(tmp_path: Path, vllm: Path) -> None:
    spec = a_vllm_spec(tmp_path)
    argv = Vllm().command(spec)
    taken = checked(argv[argv.index("serve") + 1 :])
    assert taken.no_enable_log_requests and taken.no_enable_log_outputs and taken.disable_uvicorn_access_log
    assert taken.no_trust_remote_code and taken.disable_fastapi_docs
    assert taken.load_format == "safetensors"
    assert taken.allowed_media_domains == ["media.invalid"]
    assert json.loads(taken.limit_mm_per_prompt) == {"video": 0}
    assert not (taken.api_key or taken.trust_remote_code or taken.otlp_traces_endpoint or taken.enable_log_requests)
    assert taken.uds and taken.uds.endswith("/s") and not taken.host and not taken.port
    environment = Vllm().environment(spec)
    assert environment["VLLM_NO_USAGE_STATS"] == environment["HF_HUB_OFFLINE"] == "1"
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == environment["VLLM_SERVER_DEV_MODE"] == "0"
    assert environment["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    assert environment["VLLM_PLUGINS"] == ""
    assert not any(SECRET in word for word in (*argv, *environment.values()))
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        assert environment[name].startswith(spec.state_dir)


@pytest.mark.threat("E1")
def test_only_the_api_passes_the_door(tmp_path: Path, vllm: Path) -> None:
    argv = Vllm().command(a_vllm_spec(tmp_path))
    door = json.loads(argv[argv.index("--") - 1])
    assert {path for _, path in door["allowed"]} == {
        "/metrics",
        "/tokenize",
        "/v1/models",
        *(f"/v1/{name}" for name in Vllm().capabilities().endpoints),
    }


@pytest.mark.parametrize("depth", [1, 8, 10, 11, 30])
def test_its_sockets_have_names_short_enough_for_the_kernel(tmp_path: Path, vllm: Path, depth: int) -> None:
    spec = a_vllm_spec(tmp_path, state_dir="/var" + "/deep" * depth)
    path = arguments(spec)[arguments(spec).index("--uds") + 1]
    own = Vllm().environment(spec)["VLLM_RPC_BASE_PATH"] + "/" + "u" * 36  # vLLM names its own by a UUID
    assert max(len(path), len(own)) <= 107
    other = arguments(a_vllm_spec(tmp_path, state_dir="/var" + "/keep" * depth))
    assert path not in other


def test_a_vllm_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for named, word in (("", "PATH"), ("vllm", "BERTH_VLLM"), ("/none/vllm", "BERTH_VLLM")):
        monkeypatch.setenv("BERTH_VLLM", named)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(Failure, match=word) as failure:
            Vllm().command(a_vllm_spec(tmp_path))
        assert failure.value.reason == "engine_missing"


METRICS = """
vllm:num_requests_running{engine="0",model_name="org/model"} 3.0
vllm:num_requests_waiting{engine="0",model_name="org/model"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="org/model"} 0.25
vllm:num_preemptions_total{engine="0",model_name="org/model"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="org/model"} 41.0
vllm:generation_tokens_total{engine="0",model_name="org/model"} 1500.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="org/model"} 0.75
vllm:time_to_first_token_seconds_count{engine="0",model_name="org/model"} 5.0
vllm:iteration_tokens_total_count{engine="0",model_name="org/model"} 77.0
"""


def test_its_metrics_get_our_names() -> None:
    assert Vllm().metrics(METRICS) == EngineMetrics(3, 2, 41, 1500, 0.25, 1, 0.75, 5, 77)
    assert Vllm().metrics("") == EngineMetrics()


def test_on_a_processor_weights_of_4_bits_are_served_as_they_were_measured(tmp_path: Path, vllm: Path) -> None:
    """vLLM would round activations to 8 bits besides where the processor has AMX."""
    assert Vllm().environment(a_vllm_spec(tmp_path))["VLLM_CPU_INT4_W4A8"] == "0"
    assert "VLLM_CPU_INT4_W4A8" not in Vllm().environment(a_vllm_spec(tmp_path, gpus=1))


@pytest.mark.parametrize(("changes", "wide"), [({}, True), ({"gpus": 1}, False), ({"quantization": "fp8"}, False)])
def test_on_a_processor_fp8_becomes_16_bits_before_it_starts(
    tmp_path: Path, changes: dict[str, Any], wide: bool
) -> None:
    spec = a_vllm_spec(tmp_path, **changes)
    folder = model_folder(spec)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    head = {
        "a.weight": {"dtype": "F8_E4M3", "shape": [1, 8], "data_offsets": [0, 8]},
        "a.weight_scale": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},
    }
    told = json.dumps(head).encode()
    raw = len(told).to_bytes(8, "little") + told + bytes([0x38] * 8) + bytes.fromhex("00000040")  # eight times 1, and 2
    (folder / "model.safetensors").write_bytes(raw)
    Vllm().prepare(spec)
    after = (folder / "model.safetensors").read_bytes()
    assert after.endswith(bytes.fromhex("0040") * 8) if wide else after == raw
    assert ("quantization_config" in json.loads((folder / "config.json").read_text())) is not wide


def listing(*models: tuple[str, int]) -> bytes:
    return json.dumps({"data": [{"id": name, "max_model_len": context} for name, context in models]}).encode()


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (listing(("org/model", 256), ("org/lora", 256)), "256 tokens"),
        (listing(("org/model", 512)), "other models"),
        (listing(("org/model", 512), ("org/lora", 512), ("stranger", 512)), "other models"),
        (b"?", "does not say"),
    ],
)
def test_settings_that_are_not_as_asked_are_noticed(tmp_path: Path, answer: bytes, word: str) -> None:
    spec = a_vllm_spec(tmp_path, adapters=(an_adapter(tmp_path, "org/lora", 8),))
    assert Vllm().difference(spec, listing(("org/model", 512), ("org/lora", 512))) is None
    assert word in (Vllm().difference(spec, answer) or "")


# Lines as vLLM 0.32 prints them. The last ones hold text of a request or of the model's files.
LINES = """
(APIServer pid=7) INFO 11-30 22:15:20 [model.py:1600] Using max model len 512
(Worker pid=9) INFO 11-30 22:15:40 [default_loader.py:384] Loading weights took 2.02 seconds
(EngineCore pid=8) INFO 11-30 22:15:45 [kv_cache_utils.py:1300] CPU KV cache size: 46,592 tokens, Maximum concurrency: 91.00x
(EngineCore pid=8) INFO 11-30 22:15:45 [kv_cache_utils.py:1300] GPU KV cache size: 46,592 tokens
(EngineCore pid=8) INFO 11-30 22:15:47 [core.py:300] init engine (profile, create kv cache, warmup model) took 1.70 s
(EngineCore pid=8) ERROR 11-30 22:15:47 [core.py:900] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
torch.OutOfMemoryError: CUDA out of memory.
ValueError: No available memory for the cache blocks. Try increasing gpu_memory_utilization.
api_server.py: error: unrecognized arguments: --uds
listening on http://127.0.0.1:8123
(APIServer pid=7) INFO 11-30 22:15:20 [logger.py:40] Received request cmpl-1: prompt: 'BC-CANARY', params: SamplingParams(n=1)
(EngineCore pid=8) ERROR 11-30 22:15:47 [dump_input.py:69] Dumping input data: prompt_token_ids=[504, 3575], 'BC-CANARY'
BC-CANARY torch.OutOfMemoryError: no
"""


def test_of_its_lines_numbers_and_our_words_are_kept() -> None:
    kept: list[Kept] = []
    withheld: list[int] = []
    lines = LineFilter(Vllm.rules, kept.append, withheld.append)
    lines.feed(LINES.strip().encode() + b"\n")
    texts = [line.text for line in kept]
    assert "context: 512 tokens" in texts
    assert texts.count("room in the KV cache: 46592 tokens") == 2
    assert "making the engine ready took 1.70 s" in texts
    assert [line.event for line in kept if line.event] == [
        *["out_of_memory"] * 3,
        "engine_too_old",
        "listening",
    ]
    assert not any("CANARY" in text for text in texts)
    assert len(withheld) == 3
