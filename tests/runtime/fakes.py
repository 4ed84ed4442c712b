"""Stand-ins for Ollama and trtllm-serve, which cannot be had here. They speak the API that their sources show:

- Ollama 0.12 (github.com/ollama/ollama, MIT): `ollama serve`, OLLAMA_HOST, OLLAMA_MODELS, /api/version, /api/blobs, /api/create, /v1.
- trtllm-serve 1.x (github.com/NVIDIA/TensorRT-LLM, Apache-2.0): its options, /health, /metrics, /prometheus/metrics, /v1.

Both listen on a port of loopback, ask nobody for a key, and have control paths. What they say comes from a model of words.
Run as `python fakes.py ollama|trtllm …`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runtime"))

from berth_runtime.servers.openai.app import App, exposition
from berth_runtime.servers.openai.decoder import Drawn, Sampling
from berth_runtime.servers.openai.http import Answer, Request, Server
from berth_runtime.servers.openai.worker import Worker

KEY = "nobody asks for it"
AFTER = {"is": "Paris", "Paris": ".", ".": "It", "It": "has", "has": "been", "been": "so", "so": "for", "for": "long"}


class Words:
    """A model whose tokens are words."""

    guides = True
    vocabulary = 1 << 30

    def __init__(self, context: int) -> None:
        self.context = context
        self._names: dict[int, str] = {}

    def number(self, word: str) -> int:
        number = int.from_bytes(hashlib.sha256(word.encode()).digest()[:3], "big")
        self._names[number] = word
        return number

    def encode(self, text: str, *, template: bool) -> list[int]:
        return [self.number(word) for word in text.split()]

    def render(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        return " ".join(f"{message['role']} {message['content']}" for message in messages) + " assistant"

    def text(self) -> Words:
        return self

    def push(self, token: int) -> str:
        return " " + self._names[token]

    def finish(self) -> str:
        return ""

    def show(self, token: int) -> str:
        return " " + self._names[token]

    def start(self, prompt: Sequence[int], sampling: Sampling) -> Going:
        return Going(self, self._names[prompt[-1]], sampling)


class Going:
    def __init__(self, words: Words, last: str, sampling: Sampling) -> None:
        self._words = words
        self._last = last
        self._sampling = sampling
        self._json = iter(["{", '"n"', ":", '"a"', "}"]) if sampling.guidance else None

    def step(self) -> Drawn:
        time.sleep(0.005)
        if self._json is not None:
            word = next(self._json, None)
            if word is None:
                return Drawn(0, end=True)
        else:
            word = self._last = AFTER.get(self._last, "The")
        token = self._words.number(word)
        count = self._sampling.logprobs
        if count is None:
            return Drawn(token, end=False)
        return Drawn(token, end=False, logprob=-0.1, top=tuple((token, -0.1 - n) for n in range(count)))

    def close(self) -> None:
        pass


class Fake:
    """The API of the engine around the model."""

    def __init__(self, slots: int, context: int) -> None:
        self.words = Words(context)
        self.worker = Worker(self.words, slots, lambda: os._exit(3))
        threading.Thread(target=self.worker.run, daemon=True).start()

    def app(self, name: str) -> App:
        return App(self.worker, self.words, name, KEY, {})

    async def generate(self, name: str, request: Request, answer: Answer) -> None:
        request.headers["authorization"] = f"Bearer {KEY}"
        await self.app(name).handle(request, answer)

    async def listen(self, handler: Any, host: str, port: int) -> None:
        await Server(handler).listen(host, port)
        await asyncio.Event().wait()


class Ollama(Fake):
    def __init__(self) -> None:
        super().__init__(int(os.environ["OLLAMA_NUM_PARALLEL"]), int(os.environ["OLLAMA_CONTEXT_LENGTH"]))
        self.blobs = Path(os.environ["OLLAMA_MODELS"]) / "blobs"
        self.models: dict[str, dict[str, Any]] = {}

    async def handle(self, request: Request, answer: Answer) -> None:
        method, path = request.method, request.path
        if path == "/api/version":
            return await answer.whole(200, b'{"version":"0.12.0"}')
        if path.startswith("/api/blobs/"):
            place = self.blobs / path.rpartition("/")[2].replace(":", "-")
            if method == "HEAD":
                return await answer.whole(200 if place.exists() else 404, b"")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(request.body)
            return await answer.whole(201, b"")
        if path == "/api/create":
            return await self.create(json.loads(request.body), answer)
        if path == "/v1/models":
            data = [{"id": name if ":" in name else f"{name}:latest", "object": "model"} for name in self.models]
            return await answer.whole(200, json.dumps({"object": "list", "data": data}).encode())
        if path in ("/v1/chat/completions", "/v1/completions") and method == "POST":
            asked = json.loads(request.body or b"{}").get("model")
            if asked not in self.models:
                return await answer.whole(404, json.dumps({"error": {"message": "model not found"}}).encode())
            return await self.generate(asked, request, answer)
        return await answer.whole(200, b"Ollama is running")  # all the rest is open too

    async def create(self, body: dict[str, Any], answer: Answer) -> None:
        [(name, digest)] = body["files"].items()
        place = self.blobs / digest.replace(":", "-")
        content = place.read_bytes() if place.exists() else b""
        linked = place.is_symlink() and os.environ.get("FAKE_REFUSES_LINKS")
        good = digest == "sha256:" + hashlib.sha256(content).hexdigest() and content.startswith(b"GGUF")
        if linked or not good or not name.endswith(".gguf"):
            return await answer.whole(400, b'{"error":"invalid file magic"}')
        self.models[body["model"]] = body["parameters"]
        return await answer.whole(200, b'{"status":"success"}')

    def main(self) -> None:
        assert sys.argv[2:] == ["serve"]
        assert os.environ["OLLAMA_DEBUG"] == "0" and os.environ["OLLAMA_KEEP_ALIVE"] == "-1"
        host, _, port = os.environ["OLLAMA_HOST"].rpartition(":")
        asyncio.run(self.listen(self.handle, host, int(port)))


class Trtllm(Fake):
    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given.max_batch_size, given.max_seq_len)
        self.given = given
        self.name = Path(given.model).name
        assert any(path.suffix == ".safetensors" for path in Path(given.model).iterdir())
        told = json.loads(Path(given.extra_llm_api_options).read_text())
        self.tells = told["return_perf_metrics"] and told["enable_iter_perf_stats"]

    async def handle(self, request: Request, answer: Answer) -> None:
        if request.path == "/health":
            return await answer.whole(200, b"")
        if request.path == "/v1/models":
            return await answer.whole(200, json.dumps({"object": "list", "data": [{"id": self.name}]}).encode())
        if request.path.rstrip("/") == "/prometheus/metrics" and self.tells:
            counted = exposition(self.worker.counters).replace("berth_engine_time", "trtllm_time")
            return await answer.whole(200, f"{counted}trtllm_kv_cache_utilization 0.125\n".encode(), "text/plain")
        if request.path in ("/v1/chat/completions", "/v1/completions") and request.method == "POST":
            return await self.generate(self.name, request, answer)
        return await answer.whole(200, b"[]")  # all the rest is open too

    def main(self) -> None:
        asyncio.run(self.listen(self.handle, self.given.host, self.given.port))


def trtllm_arguments(argv: list[str]) -> argparse.Namespace:
    """trtllm-serve's options, those that Berth may use and some that it must not."""
    parser = argparse.ArgumentParser(prog="trtllm-serve", allow_abbrev=False)
    parser.add_argument("model")
    for name in ("host", "backend", "log_level", "extra_llm_api_options", "reasoning_parser", "tool_parser"):
        parser.add_argument(f"--{name}")
    for name in ("port", "max_batch_size", "max_num_tokens", "max_seq_len", "tp_size", "pp_size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--kv_cache_free_gpu_memory_fraction", type=float)
    parser.add_argument("--trust_remote_code", action="store_true")
    parser.add_argument("--otlp_traces_endpoint")
    given = parser.parse_args(argv)
    assert given.port > 0 and given.host == "127.0.0.1"
    return given


if __name__ == "__main__":
    if sys.argv[1] == "ollama":
        Ollama().main()
    else:
        Trtllm(trtllm_arguments(sys.argv[2:])).main()
