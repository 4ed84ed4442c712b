"""After every use and misuse of a key, it stands in nothing that the gateway writes."""

from __future__ import annotations

import http.client
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from berth.host.valkey import Valkey
from tests.gateway.harness import Answer, Engine, GatewayProcess, World, chat, get, post, raw_post, talk
from tests.runtime.agents import eventually

EXPIRED = "bth_sk_" + "Expired7" * 5 + "xyz"
ALIEN = "bth_sk_" + "Alien0Q9" * 5 + "xyz"


def answer_to(port: int, data: bytes) -> tuple[int, bytes]:
    """Status and body of the only answer before the gateway closes."""
    raw = talk(port, data)
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.threat("K2")
def test_no_sink_holds_a_key(
    tmp_path: Path, engine: Engine, world: World, valkey: redis.Redis, valkey_server: Valkey
) -> None:
    world.keys.append(world.key(EXPIRED, world.org, expires_at=int(time.time()) - 5))
    world.next().publish(valkey)
    process = GatewayProcess(tmp_path, world, valkey_server.url).start()
    path, body = "/v1/chat/completions", chat("acme/model")
    bodies: list[bytes] = []
    try:
        answers: list[Answer] = [post(process.port, path, body, token) for token in (world.token, EXPIRED, ALIEN)]
        answers.append(post(process.port, path, chat("rival/x"), world.token))
        answers.append(get(process.port, f"/v1/models?api_key={ALIEN}"))
        assert [each.status for each in answers] == [200, 401, 401, 404, 400]
        bodies += [each.body for each in answers]
        data = process.world.token
        for broken in (
            raw_post(path, b"{", ALIEN, "Content-Length: 7\r\n"),  # two lengths
            raw_post(path, b"{", ALIEN + "\0"),
            raw_post(path, b"{", ALIEN * 1200),  # 64 KiB
            raw_post(path, b"{", ALIEN + "' OR '1'='1", "Connection: close\r\n"),
            raw_post(path, b"{", data, f"x-api-key: {ALIEN}\r\nConnection: close\r\n"),
        ):
            status, text = answer_to(process.port, broken)
            assert status in (400, 401, 431)
            bodies.append(text)
        world.keys.pop(0)
        world.next().publish(valkey)  # revoked
        eventually(lambda: post(process.port, path, body, world.token).status == 401, "the revoked key to be refused")
        bodies += [get(process.port, "/metrics").body, get(process.port, "/readyz").body]
    finally:
        process.stop()
        process.kill()
    process.check_log()
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    written = b"".join(each.read_bytes() for each in files) + b"".join(bodies)
    names = [name for name in valkey.scan_iter() if valkey.type(name) != b"none"]
    stored: list[Any] = [names, *(valkey.dump(name) for name in names), valkey.xrange("berth:usage")]
    everything = written + repr(stored).encode()
    assert len(written) > 2000 and files
    for token in (world.token, world.other_token, EXPIRED, ALIEN):
        assert token.encode() not in everything and token[7:30].encode() not in everything


@pytest.mark.threat("K2")
def test_what_is_no_head_at_all_is_refused_alike_and_says_nothing(gateway: GatewayProcess) -> None:
    """64 KiB and a zero byte never come as far as a key: the parser refuses the head, with the same words for everybody."""
    path = "/v1/chat/completions"
    for spoil, status in ((lambda key: key * 1200, 431), (lambda key: key + "\0", 400)):
        found = [answer_to(gateway.port, raw_post(path, b"{}", spoil(key))) for key in (gateway.world.token, ALIEN)]
        assert [each[0] for each in found] == [status, status]
        assert found[0][1] == found[1][1]
    with socket.create_connection(("127.0.0.1", gateway.port)) as sock:
        sock.sendall(b"\0" * 64)
        sock.settimeout(30)
        response = http.client.HTTPResponse(sock)
        response.begin()
        assert response.status == 400
