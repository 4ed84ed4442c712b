"""Media only inside the request: no URL of a client's makes anybody fetch anything."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.core import Core, answers
from tests.gateway.harness import World

HOSTILE = [
    "http://169.254.169.254/latest/meta-data",
    "http://2852039166/",
    "http://127.1/x.png",
    "http://[::ffff:7f00:1]/x.png",
    "https://good.example@127.0.0.1/x.png",
    "https://rebinding.example/x.png",
    "https://a.example/redirects-inside.png",
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "//127.0.0.1/x",
    " http://127.0.0.1/",
    "data:text/html,<script>",
    "data:,http://127.0.0.1/",
]


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    world = World()
    every = ("chat/completions", "responses", "messages")
    world.route("acme/llama", 7001, endpoints=every)
    world.route("acme/vllm", 7002, endpoints=every, engine="vllm", extra_fields=("media_io_kwargs",))
    made = Core(tmp_path, world)
    yield made
    made.close()


def bodies(model: str, url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every place of every endpoint where a URL can stand."""
    image = {"type": "image_url", "image_url": {"url": url}}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}]}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]}
    for kind in ("video_url", "audio_url", "file"):
        yield "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": kind, kind: {"url": url}}]}]}
    audio = {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}}
    if "://" in url:
        yield "/v1/chat/completions", {"messages": [{"role": "user", "content": [audio]}]}
    for part in (
        {"type": "input_image", "image_url": url},
        {"type": "input_file", "file_url": url},
        {"type": "input_image", "file_id": url},
    ):
        yield "/v1/responses", {"input": [{"role": "user", "content": [part]}]}
    yield "/v1/responses", {"input": "x", "tools": [{"type": "mcp", "server_label": "a", "server_url": url}]}
    source = {"type": "url", "url": url}
    for block in ({"type": "image", "source": source}, {"type": "document", "source": source}):
        yield "/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [block]}]}
    yield (
        "/v1/messages",
        {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}], "mcp_servers": [{"url": url}]},
    )


@pytest.mark.threat("G6")
@pytest.mark.parametrize("model", ["acme/llama", "acme/vllm"])
@pytest.mark.parametrize("url", HOSTILE)
def test_no_address_of_a_client_s_is_asked(core: Core, monkeypatch: pytest.MonkeyPatch, model: str, url: str) -> None:
    """Neither by the gateway nor, because it never gets the address, by an engine."""

    def spy(*args: object) -> None:
        raise AssertionError("somebody connects")

    monkeypatch.setattr(socket.socket, "connect", spy)
    monkeypatch.setattr(socket, "getaddrinfo", spy)
    for path, data in bodies(model, url):
        _, wire = core.ask(json.dumps({"model": model, **data}).encode(), path)
        (answer,) = answers(wire.out)
        assert answer.status == 400, (path, data)
        assert url.strip() not in answer.body.decode()
    assert core.dialled == [] and core.events == []
