"""Nothing of prompts or completions is stored or logged (invariant 4), looked for on the running platform."""

from __future__ import annotations

import base64
import gzip
import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
import redis

from tests.e2e import canary
from tests.e2e.conftest import Platform

pytestmark = pytest.mark.e2e


def drive_every_ending(platform: Platform, core: str) -> list[bytes]:
    """Calls with a phrase in each place, ending in each way. Returns the bodies that came back."""
    model, headers = platform.demo["model"], {"Authorization": f"Bearer {platform.demo['api_key']}"}
    base = platform.demo["api_base"]

    def plant(place: str) -> str:
        return canary.phrase(core, place)

    def chat(content: object, **fields: object) -> dict[str, object]:
        return {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 24, **fields}

    errors: list[bytes] = []
    with httpx.Client(base_url=base, headers=headers, timeout=60) as client:
        bodies: list[dict[str, object]] = [
            chat(f"Repeat after me: {plant('user')}"),
            chat([{"type": "text", "text": plant("part")}]),
            {
                **chat("hello"),
                "messages": [
                    {"role": "system", "content": plant("system")},
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": plant("assistant")},
                    {"role": "user", "content": "go on"},
                ],
            },
            chat("hello", stop=[plant("stop")]),
            chat("hello", user=plant("user-field")),
            chat("hello", unknown_field=plant("unknown")),
            chat(
                "hello",
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"pattern": plant("schema")}},
                },
            ),
            chat("hello", temperature=plant("wrong-type")),
            chat(f"{plant('too-long')} " * 9000),
        ]
        for body in bodies:
            errors.append(client.post("/chat/completions", json=body).content if body.get("max_tokens") else b"")
        echo = client.post(
            "/completions",
            json={"model": model, "prompt": f"A list: {plant('prompt')}, {plant('prompt')},", "max_tokens": 24},
        )
        assert echo.status_code == 200
        with client.stream("POST", "/chat/completions", json=chat(plant("stream"), stream=True)) as answer:
            assert answer.status_code == 200
            answer.read()
        with client.stream(
            "POST", "/chat/completions", json=chat(plant("left"), stream=True, max_tokens=400)
        ) as answer:
            next(answer.iter_bytes())  # and leave after the first bytes
        errors.append(
            client.post(
                "/chat/completions", content=f'{{"model": "{model}", "messages": [{plant("broken-json")}'
            ).content
        )
        errors.append(client.post(f"/nowhere/{plant('path')}?q={plant('query')}").content)
        errors.append(client.get("/models", headers={"Authorization": f"Bearer {plant('bearer')}"}).content)
    where = urlsplit(base)
    with socket.create_connection((where.hostname, where.port)) as raw:  # gone before the body is whole
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: {headers['Authorization']}\r\ncontent-length: 5000\r\n\r\n"
        raw.sendall(head.encode() + json.dumps(chat(plant("half-sent"))).encode())
    return errors


@pytest.mark.threat("A10")
def test_no_phrase_of_a_prompt_is_anywhere(platform_up: Platform) -> None:
    core = canary.fresh_core()
    errors = drive_every_ending(platform_up, core)
    platform_up.wait_for(platform_up.everything_is_ingested)
    scanner = canary.Scanner(core)
    bodies = canary.Sink("error bodies")
    for number, content in enumerate(errors):
        # An answer that succeeded may repeat the prompt to its caller; an error never does.
        if b'"error"' in content[:20]:
            scanner.search(bodies, content, f"error {number}")
    weights = platform_up.home / "store"
    sinks = [
        bodies,
        scanner.postgres(platform_up.database_url),
        scanner.valkey(platform_up.redis_url),
        scanner.files(platform_up.home, skip=(weights,)),
        scanner.files(Path("/dev/shm")),
    ]
    assert {sink.name: sink.hits for sink in sinks if sink.hits} == {}
    assert [sink.name for sink in sinks[:4] if sink.size == 0] == []
    assert any((platform_up.home / "logs").iterdir()), "process output is in files, so it was searched"


def test_the_scanner_finds_what_is_there(platform_up: Platform, tmp_path: Path) -> None:
    """The control run: a phrase planted in each kind of sink is found, in each form."""
    core = canary.fresh_core()
    phrase = canary.phrase(core, "control")
    scanner = canary.Scanner(core)
    for name, needle in canary.variants(core).items():
        (tmp_path / name.replace(" ", "_")).write_bytes(b"before " + needle + b" after")
    hits = scanner.files(tmp_path).hits
    assert [name for name in canary.variants(core) if not any(hit.startswith(f"{name} in ") for hit in hits)] == []
    for lead in range(3):  # base64 looks different at each of three offsets
        encoded = base64.b64encode(b"x" * lead + phrase.encode() + b"tail")
        for content in (encoded, gzip.compress(phrase.encode())):
            sink = canary.Sink("one piece")
            scanner.search(sink, content, "it")
            assert sink.hits
    with psycopg.connect(platform_up.database_url) as connection:
        connection.execute("create table canary_control (content text)")
        connection.execute("insert into canary_control values (%s)", [phrase])
        connection.commit()
        try:
            assert scanner.postgres(platform_up.database_url).hits
        finally:
            connection.execute("drop table canary_control")
    with redis.Redis.from_url(platform_up.redis_url) as client:
        client.xadd("canary:control", {"field": phrase})
        try:
            assert scanner.valkey(platform_up.redis_url).hits
        finally:
            client.delete("canary:control")
