"""Real sockets for the gateway's tests: a scripted engine, the gateway as a process, and a plain HTTP client."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import redis
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from berth.host.child import free_port
from berth_gateway.contract import (
    SNAPSHOT_CHANNEL,
    SNAPSHOT_KEY,
    USAGE_POSITION_KEY,
    USAGE_STREAM,
    Budget,
    KeyInfo,
    OrgInfo,
    Replica,
    Route,
    RouteState,
    SignedSnapshot,
    Snapshot,
    UsageBatch,
    UsageEvent,
    usage_key,
    usage_mac,
)

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0
SECRET = "engine-secret-0123456789"
MASTER = bytes(range(32))
NAME = "test-gateway"


# --- what the control plane would publish


@dataclass
class World:
    """Two organisations with a key each, signed with a key of this test's own."""

    signer: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    epoch: str = field(default_factory=lambda: str(uuid4()))
    version: int = 1
    issued_at: int = field(default_factory=lambda: int(time.time()))
    token: str = "bth_sk_" + "a" * 43
    other_token: str = "bth_sk_" + "b" * 43
    org: OrgInfo = field(default_factory=lambda: OrgInfo(str(uuid4()), "acme", origins=("https://app.example",)))
    other_org: OrgInfo = field(
        default_factory=lambda: OrgInfo(str(uuid4()), "rival", origins=("https://rival.example",))
    )
    keys: list[KeyInfo] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    orgs: list[OrgInfo] = field(default_factory=list)
    budgets: list[Budget] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.orgs = [self.org, self.other_org]
        self.keys = [self.key(self.token, self.org), self.key(self.other_token, self.other_org)]

    @staticmethod
    def key(token: str, org: OrgInfo, **fields: Any) -> KeyInfo:
        return KeyInfo(digest=hashlib.sha256(token.encode()).digest(), key_id=str(uuid4()), org_id=org.org_id, **fields)

    def route(self, name: str, *ports: int, **fields: Any) -> Route:
        """Adds a deployment with a replica on each port."""
        values: dict[str, Any] = {
            "name": name,
            "org_id": (self.org if name.startswith("acme/") else self.other_org).org_id,
            "deployment_id": str(uuid4()),
            "revision": 1,
            "state": RouteState.READY,
            "engine": "llamacpp",
            "engine_model": "engine-name",
            "endpoints": ("chat/completions", "completions"),
            "context_length": 2048,
            "created": 1_700_000_000,
            "replicas": tuple(Replica(f"r{p}", "127.0.0.1", p, SECRET) for p in ports),
        }
        made = Route(**values | fields)
        self.routes.append(made)
        return made

    def snapshot(self) -> Snapshot:
        return Snapshot(
            format=1,
            epoch=self.epoch,
            version=self.version,
            issued_at=self.issued_at,
            orgs=tuple(self.orgs),
            keys=tuple(self.keys),
            routes=tuple(self.routes),
            budgets=tuple(self.budgets),
        )

    def signed(self) -> bytes:
        payload = msgspec.msgpack.encode(self.snapshot())
        return msgspec.msgpack.encode(SignedSnapshot(payload, self.signer.sign(payload)))

    def publish(self, valkey: redis.Redis) -> None:
        store(valkey, self.epoch, self.version, self.signed())

    def next(self) -> World:
        self.version += 1
        self.issued_at += 1
        return self


def store(valkey: redis.Redis, epoch: str, version: int, signed: bytes) -> None:
    valkey.hset(SNAPSHOT_KEY, mapping={"epoch": epoch, "version": version, "signed": signed})
    valkey.publish(SNAPSHOT_CHANNEL, version)


# --- a scripted engine


def chat_chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk as llama.cpp writes it, key order included."""
    return {
        "choices": [{"finish_reason": finish, "index": 0, "delta": delta}],
        "created": 1796065327,
        "id": "chatcmpl-3CiOehSmOqbGam9GneuLoegEGDihpjb3",
        "model": "/srv/models/secret-path.gguf",
        "system_fingerprint": "b0-unknown",
        "object": "chat.completion.chunk",
        **more,
    }


def timings(prompt: int, done: int, cached: int = 0) -> dict[str, Any]:
    return {
        "timings": {
            "cache_n": cached,
            "prompt_n": prompt - cached,
            "prompt_ms": 401.434,
            "predicted_n": done,
            "predicted_ms": 25.88,
            "predicted_per_second": 38.6,
        }
    }


def usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    return {
        "usage": {
            "completion_tokens": completion,
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
    }


def event(data: dict[str, Any] | str) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def chat_events(words: list[str], prompt: int = 11) -> list[bytes]:
    """A whole chat answer, one token a word."""
    out = [event(chat_chunk({"role": "assistant", "content": None}))]
    out += [event(chat_chunk({"content": w}, **timings(prompt, n))) for n, w in enumerate(words, 1)]
    out.append(event(chat_chunk({}, "stop")))
    last = {**chat_chunk({}), "choices": [], **usage(prompt, len(words), 3), **timings(prompt, len(words), 3)}
    return [*out, event(last), event("[DONE]")]


def completion_events(words: list[str], prompt: int = 5) -> list[bytes]:
    def chunk(text: str, finish: str | None, **more: Any) -> bytes:
        choices = [{"text": text, "index": 0, "logprobs": None, "finish_reason": finish}]
        head = {
            "choices": choices,
            "created": 1796065327,
            "model": "x",
            "system_fingerprint": "b0",
            "object": "text_completion",
        }
        use = {"usage": more.pop("usage")} if "usage" in more else {}
        return event({**head, **use, "id": "chatcmpl-5fuS", **more})

    out = [chunk(w, None, **timings(prompt, n)) for n, w in enumerate(words, 1)]
    return [*out, chunk("", "stop", **usage(prompt, len(words)), **timings(prompt, len(words))), event("[DONE]")]


HEAD = b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


def plain(status: int, body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b" % (
        status,
        more,
        len(body),
        body,
    )


@dataclass
class Seen:
    """One request as the engine got it."""

    head: bytes
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)  # type: ignore[no-any-return]

    def header(self, name: str) -> str | None:
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return None


class Talk:
    """A script's side of one connection: `send` bytes, `gone` waits until the gateway has closed it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.closed = False

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def gone(self, within: float = PATIENCE) -> bool:
        self.sock.settimeout(within)
        try:
            while self.sock.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        self.closed = True


Script = Callable[[Seen, Talk], None]


def words_of(seen: Seen) -> list[str]:
    """The default script's answer: as many words as max_tokens allows, at most five."""
    return [f"w{n} " for n in range(min(5, seen.json.get("max_tokens", 5)))]


def answer(seen: Seen, talk: Talk) -> None:
    """The default script: a whole answer in one write."""
    events = chat_events(words_of(seen)) if "messages" in seen.json else completion_events(words_of(seen))
    talk.send(HEAD + chunked(*events))


class Engine:
    """Answers every request by `script`, in a thread per connection. `seen` holds all requests, `strays` bytes behind them."""

    def __init__(self) -> None:
        self.script: Script = answer
        self.seen: list[Seen] = []
        self.connections = 0
        self._server = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._open: list[socket.socket] = []
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        buffer = b""
        try:
            while True:
                while b"\r\n\r\n" not in buffer:
                    data = sock.recv(65536)
                    if not data:
                        return
                    buffer += data
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                length = int(Seen(head, b"").header("content-length") or 0)
                while len(buffer) < length:
                    buffer += sock.recv(65536)
                seen, buffer = Seen(head, buffer[:length]), buffer[length:]
                self.seen.append(seen)
                talk = Talk(sock)
                self.script(seen, talk)
                if talk.closed:
                    return
        except OSError:
            return
        finally:
            sock.close()

    def drop_connections(self) -> None:
        """Closes what is open, as an engine does that restarts or is tired of waiting."""
        for sock in self._open:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._open.clear()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.drop_connections()


# --- the gateway as a process


class GatewayProcess:
    """`python -m berth_gateway` with its own folder. `log` is what it wrote to standard error."""

    def __init__(self, folder: Path, world: World, redis_url: str, **environ: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.world = world
        public = folder / "snapshot.pub"
        public.write_bytes(world.signer.public_key().public_bytes_raw())
        key = folder / "usage.key"
        key.write_text(usage_key(MASTER, NAME).hex())
        self.environ = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "platform"),
            "BERTH_GATEWAY_NAME": NAME,
            "BERTH_GATEWAY_PORT": str(self.port),
            "BERTH_GATEWAY_DIR": str(folder / "gateway"),
            "BERTH_SNAPSHOT_PUBLIC_KEY_FILE": str(public),
            "BERTH_USAGE_KEY_FILE": str(key),
            "REDIS_URL": redis_url,
            **environ,
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log_file(self) -> Path:
        return self.folder / "gateway.log"

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log_file.read_text().splitlines() if line.startswith("{")]

    def check_log(self) -> None:
        """Nothing but lines of the one form, and no fault of the gateway's own."""
        lines = self.log_file.read_text().splitlines()
        assert [line for line in lines if not line.startswith("{") or '"loop_fault"' in line] == []

    def start(self, ready: str = "/readyz") -> GatewayProcess:
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "berth_gateway"], env=self.environ, stderr=log)
        wait_for(lambda: self._answers(ready), "the gateway to answer", alive=self.process)
        return self

    def _answers(self, path: str) -> bool:
        try:
            return get(self.port, path).status == 200
        except OSError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        self.process = None
        return code


def wait_for(check: Callable[[], Any], what: str, patience: float = PATIENCE, alive: Any = None) -> Any:
    """The first true value of `check`."""
    deadline = time.monotonic() + patience
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline or (alive is not None and alive.poll() is not None):
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.02)


class Ingester:
    """Does what the control plane's does, in memory: takes batches from the stream, proves them, moves the position."""

    def __init__(self, valkey: redis.Redis) -> None:
        self._valkey = valkey
        self.events: dict[str, UsageEvent] = {}
        self.position = 0
        self.gaps = 0

    def run(self) -> None:
        for entry_id, fields in self._valkey.xrange(USAGE_STREAM):
            batch = msgspec.msgpack.decode(fields[b"batch"], type=UsageBatch)
            key = usage_key(MASTER, batch.gateway)
            assert batch.mac == usage_mac(key, batch.gateway, batch.start, batch.end, batch.payload)
            for item in msgspec.msgpack.decode(batch.payload, type=list[UsageEvent]):
                known = self.events.setdefault(item.event_id, item)
                assert known == item, "one id, two different events"
            if batch.start <= self.position:
                self.position = max(self.position, batch.end)
            else:
                self.gaps += 1
            self._valkey.xdel(USAGE_STREAM, entry_id)
        self._valkey.hset(USAGE_POSITION_KEY, NAME, self.position)

    def until(self, count: int, patience: float = PATIENCE) -> list[UsageEvent]:
        """The events, once there are at least `count`."""

        def enough() -> bool:
            self.run()
            return len(self.events) >= count

        wait_for(enough, f"{count} usage events (there are {len(self.events)})", patience)
        return list(self.events.values())


# --- a plain client


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]  # type: ignore[no-any-return]

    @property
    def code(self) -> str:
        return str(self.error["code"])

    @property
    def events(self) -> list[Any]:
        """Data of the stream's events, comments left out."""
        out = []
        for block in self.body.decode().split("\n\n"):
            if block.startswith("data: "):
                out.append(block[6:] if block[6:] == "[DONE]" else json.loads(block[6:]))
        return out


def request(
    port: int, method: str, path: str, body: bytes | None = None, token: str | None = None, **headers: str
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        send = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            send["Authorization"] = f"Bearer {token}"
        connection.request(method, path, body, send)
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())
    finally:
        connection.close()


def get(port: int, path: str, token: str | None = None, **headers: str) -> Answer:
    return request(port, "GET", path, None, token, **headers)


def post(port: int, path: str, data: Any, token: str | None = None, **headers: str) -> Answer:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return request(port, "POST", path, body, token, content_type="application/json", **headers)


def chat(model: str = "acme/model", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}


def raw_post(path: str, body: bytes, token: str, more: str = "", version: str = "1.1") -> bytes:
    return (
        f"POST {path} HTTP/{version}\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def talk(port: int, data: bytes, *, pieces: Iterator[bytes] | None = None, timeout: float = PATIENCE) -> bytes:
    """Sends bytes, then reads until the gateway closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as sock:
        for piece in pieces or iter([data]):
            try:
                sock.sendall(piece)
            except OSError:
                break
        out = b""
        try:
            while part := sock.recv(65536):
                out += part
        except OSError:
            pass
        return out
