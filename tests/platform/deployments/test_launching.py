"""From what a plan says to what an engine is started with: on GPUs, on a CPU, and by family."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from berth.catalog.facts import ArtefactFacts, AttentionGroup, to_json
from berth.catalog.models import Artefact, ArtefactFile, ModelVersion
from berth.compute.provider import Device, HardwareKind, Offer
from berth.compute.providers.fake import FakeProvider
from berth.deployments.launching import launch_spec
from berth.deployments.models import Deployment, Replica, Revision
from berth.deployments.rollouts import alike
from berth.deployments.services import deploy, update
from berth.orgs.models import Organisation
from berth_runtime.engines.vllm import arguments
from berth_runtime.spec import LaunchSpec as RuntimeSpec
from tests import make
from tests.platform.deployments.conftest import Clock
from tests.platform.deployments.looks import look

pytestmark = pytest.mark.django_db
GIB = 1 << 30
QWEN = msgspec.structs.replace(
    make.FACTS,
    architecture="Qwen3ForCausalLM",
    name="Qwen3 32B",
    parameters=32_762_123_264,
    active_parameters=32_762_123_264,
    layers=64,
    embedding_length=5120,
    feed_forward_length=25_600,
    heads=64,
    context_length=40_960,
    vocabulary=151_936,
    attention=(AttentionGroup(64, 8, 128, 128),),
    tied_embeddings=False,
)


def safetensors(org: Organisation, accepts: tuple[str, ...]) -> ModelVersion:
    version = make.version(make.model(org, "qwen"), facts=to_json(QWEN))
    size = 2 * QWEN.parameters
    facts = ArtefactFacts(1, "BF16", 707, size, size, 8, 4_000, accepts)
    artefact = Artefact.objects.create(
        org=org, version=version, format="safetensors", quantization="BF16", engines=["vllm", "tensorrt_llm"], size=size,
        facts=to_json(facts),
    )  # fmt: skip
    for number, name in enumerate(("config.json", "model.safetensors")):
        role = "config" if number == 0 else "weights"
        ArtefactFile.objects.create(org=org, artefact=artefact, name=name, role=role, size=9, sha256=f"{number:064x}")
    return version


def gpus(count: int, model: str = "h100", devices: bool = True) -> Offer:
    ids = tuple(Device(f"GPU-{number}", 80 * GIB) for number in range(count)) if devices else ()
    return Offer(
        key=f"gpu-{model}", kind=HardwareKind.GPU, cores=32, memory_bytes=512 * GIB, free_memory_bytes=500 * GIB, gpu=model,
        gpus=count, free_gpus=count, devices=ids,
    )  # fmt: skip


@pytest.fixture
def h100s(provider: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    monkeypatch.setattr(provider, "offers", lambda: [gpus(4)])
    return provider


def deploy_qwen(accepts: tuple[str, ...] = ("user", "system", "tools"), **wishes: Any) -> Deployment:
    org = make.org()
    return deploy(org, None, version=safetensors(org, accepts), **wishes)


def started(deployment: Deployment, provider: FakeProvider, clock: Clock) -> RuntimeSpec:
    """As the runtime reads it."""
    look(deployment, provider, clock)
    replica = Replica.objects.for_org(deployment.org_id).select_related("revision", "deployment__org").get()
    spec: RuntimeSpec = msgspec.convert(msgspec.to_builtins(launch_spec(replica)), RuntimeSpec)
    return spec


def option(spec: RuntimeSpec, name: str) -> str | None:
    said = arguments(spec)
    return said[said.index(name) + 1] if name in said else None


def test_on_gpus(h100s: FakeProvider, clock: Clock) -> None:
    made = deploy_qwen(needs={"context_length": 32_768})
    revision = made.revision
    assert revision is not None
    assert revision.gpus == 2
    spec = started(made, h100s, clock)
    assert (spec.gpus, len(spec.devices), spec.tensor_parallel, spec.model_format) == (2, 2, 2, "safetensors")
    assert spec.memory_limit is None
    assert option(spec, "--tensor-parallel-size") == "2"
    assert option(spec, "--max-model-len") == "32768"
    assert option(spec, "--gpu-memory-utilization") == str(spec.memory_fraction)
    assert option(spec, "--max-num-batched-tokens") == str(spec.max_batched_tokens)
    assert (option(spec, "--tool-call-parser"), option(spec, "--reasoning-parser")) == ("hermes", "qwen3")
    assert option(spec, "--quantization") is None  # the files say it
    assert "--enable-prefix-caching" in arguments(spec)


def test_without_tools_in_its_template_there_is_no_parser_for_them(h100s: FakeProvider, clock: Clock) -> None:
    made = deploy_qwen(("user",), needs={"context_length": 8192})
    assert option(started(made, h100s, clock), "--tool-call-parser") is None


def test_vllm_on_a_cpu_is_told_its_cache(provider: FakeProvider, clock: Clock) -> None:
    org = make.org()
    model = make.version(make.model(org))
    facts = msgspec.convert(make.artefact(model).facts, ArtefactFacts)
    small = msgspec.structs.replace(facts, quantization="BF16")
    Artefact.objects.create(
        org=org, version=model, format="safetensors", quantization="BF16", engines=["vllm"], size=1, facts=to_json(small)
    )  # fmt: skip
    made = deploy(org, None, version=model, pins={"engine": "vllm"}, needs={"concurrency": 2})
    spec = started(made, provider, clock)
    assert spec.gpus == 0 and spec.memory_limit
    assert spec.kv_cache_bytes and spec.kv_cache_bytes >= GIB
    assert (spec.tensor_parallel, spec.memory_fraction, spec.tool_parser) == (1, None, None)


def test_what_the_engine_is_told_is_part_of_a_revision(h100s: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    made = deploy_qwen(needs={"context_length": 8192})
    first = made.revision
    monkeypatch.setattr(h100s, "offers", lambda: [gpus(8, "l4")])
    update(made, None, needs={"context_length": 8192})
    revisions: list[Any] = list(Revision.objects.for_org(made.org_id).filter(deployment=made).order_by("number"))
    assert first is not None and "tensor_parallel" not in revisions[0].options
    assert revisions[1].options["tensor_parallel"] == revisions[1].gpus > 1
    assert not alike(*revisions)
    again = Revision.objects.for_org(made.org_id).get(pk=revisions[0].pk)
    assert alike(revisions[0], again)  # whatever the order of keys that the database gives back
