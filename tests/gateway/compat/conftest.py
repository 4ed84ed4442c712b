"""One gateway in front of real engines, and every client run against it, each with a key of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from berth.host.valkey import Valkey
from berth_gateway.contract import UsageEvent
from tests.gateway.harness import ROOT, GatewayProcess, Ingester, World
from tests.gateway.llama import Llama

HERE = Path(__file__).parent
PACKAGES = ROOT / ".venv" / "compat"  # requirements/compat.txt
NODE = ROOT / ".venv" / "node"
_PYTHON = ("use_openai", "use_openai_async", "use_anthropic", "use_langchain", "use_llama_index", "use_litellm")
_NODE = ("use_openai", "use_anthropic", "use_ai")
CLIENTS = [*(f"python/{name}.py" for name in _PYTHON), *(f"node/{name}.mjs" for name in _NODE)]
VECTORS = ("--embeddings", "--pooling", "mean", "--batch-size", "1024", "--ubatch-size", "1024")
SECONDS = 300.0  # only a hang takes so long
_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it would fetch prices of others' models
    "LANGSMITH_TRACING": "false",
    "HF_HUB_OFFLINE": "1",
    "NO_PROXY": "*",
}


@dataclass(frozen=True)
class Run:
    """What a client found, and what the gateway metered for its key."""

    versions: dict[str, str]
    checks: dict[str, str]
    usage: list[tuple[int, int]]
    events: list[UsageEvent]


def _missing(client: str) -> str | None:
    if client.startswith("python/"):
        return (
            None if PACKAGES.is_dir() else "the clients of requirements/compat.txt are not installed (make test does)"
        )
    return (
        None
        if (HERE / "node" / "node_modules").is_dir()
        else "tests/gateway/compat/node is not installed (make test does)"
    )


def _run(client: str, url: str, key: str) -> dict[str, Any]:
    environ = {
        "PATH": f"{NODE}:{os.environ['PATH']}",
        "HOME": "/nonexistent",
        "BERTH_URL": url,
        "BERTH_KEY": key,
        **_QUIET,
    }
    if client.startswith("python/"):
        argv = [sys.executable, str(HERE / client)]
        environ["PYTHONPATH"] = str(PACKAGES)
    else:
        argv = [shutil.which("node", path=environ["PATH"]) or "node", str(HERE / client)]
    try:
        done = subprocess.run(argv, env=environ, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"versions": {}, "checks": {"run": f"not ready after {SECONDS:.0f} s"}, "usage": []}
    lines = done.stdout.decode().strip().splitlines()
    if done.returncode or not lines:
        return {
            "versions": {},
            "checks": {"run": done.stderr.decode()[-3000:] or f"exit {done.returncode}"},
            "usage": [],
        }
    return json.loads(lines[-1])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, valkey_server: Valkey) -> Iterator[dict[str, Run]]:
    """All clients at once: imports take longer than requests."""
    chat = Llama(tmp_path_factory.mktemp("chat"))
    embedder = Llama(tmp_path_factory.mktemp("embedder"), *VECTORS)
    present = [client for client in CLIENTS if _missing(client) is None]
    tokens = {client: f"bth_sk_{number:043}" for number, client in enumerate(present)}
    world = World()
    keys = {client: world.key(token, world.org) for client, token in tokens.items()}
    world.keys += keys.values()
    with redis.Redis.from_url(valkey_server.url) as valkey:
        valkey.flushall()
        gateway: GatewayProcess | None = None
        try:
            chat.start()
            embedder.start()
            every = ("chat/completions", "completions", "responses", "messages")
            world.route("acme/model", chat.port, context_length=1024, endpoints=every, extra_fields=("logit_bias",))
            world.route("acme/embedder", embedder.port, context_length=1024, endpoints=("embeddings",))
            world.publish(valkey)
            gateway = GatewayProcess(tmp_path_factory.mktemp("gateway"), world, valkey_server.url).start()
            url = f"http://127.0.0.1:{gateway.port}"
            with ThreadPoolExecutor(len(CLIENTS)) as pool:
                found = dict(zip(present, pool.map(lambda c: _run(c, url, tokens[c]), present), strict=True))
            gateway.stop()
            gateway.check_log()
            ingester = Ingester(valkey)
            ingester.run()
        finally:
            if gateway is not None:
                gateway.kill()
            chat.kill()
            embedder.kill()
    events = list(ingester.events.values())
    yield {
        client: Run(
            versions=one["versions"],
            checks=one["checks"],
            usage=sorted((prompt, completion) for prompt, completion in one["usage"]),
            events=[event for event in events if event.key_id == keys[client].key_id],
        )
        for client, one in found.items()
    }


@pytest.fixture
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    """The run of the client that the test names."""
    client: str = request.param
    missing = _missing(client)
    if missing is not None:
        pytest.skip(missing)
    return runs[client]
