"""The gateway's core without sockets: a client's wire and engines' wires are lists of bytes, the clock is set by the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from berth_gateway.client import Client
from berth_gateway.config import Config
from berth_gateway.contract import UsageEvent
from berth_gateway.gateway import Gateway
from berth_gateway.logs import Log
from berth_gateway.records import HEADER, SETTLED, unpack
from berth_gateway.snapshot import SnapshotStore, Verdict
from berth_gateway.spool import Spool
from berth_gateway.upstream import Upstream
from tests.gateway.harness import HEAD as ENGINE_HEAD
from tests.gateway.harness import Answer, Seen, World, chat, chat_events, chunked, raw_post


class Wire:
    """A connection's end: what was written, and what was asked of it."""

    def __init__(self) -> None:
        self.out = b""
        self.writes: list[bytes] = []
        self.ended = self.closed = self.aborted = self.paused = False

    def write(self, data: bytes) -> None:
        assert not self.ended, "written behind the end"
        self.out += data
        self.writes.append(data)

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    @property
    def open(self) -> bool:
        return not (self.ended or self.closed or self.aborted)


@dataclass
class Dialled:
    """A connection to an engine."""

    upstream: Upstream
    wire: Wire = field(default_factory=Wire)

    @property
    def requests(self) -> list[Seen]:
        """Strictly by the framing the gateway chose: what cannot be read so fails."""
        out, rest = [], self.wire.out
        while rest:
            head, mark, rest = rest.partition(b"\r\n\r\n")
            assert mark, "half a head"
            length = int(Seen(head, b"").header("content-length") or -1)
            assert 0 <= length <= len(rest), "half a body"
            out.append(Seen(head, rest[:length]))
            rest = rest[length:]
        return out

    def send(self, data: bytes, split: int | None = None) -> None:
        for piece in [data] if split is None else [data[:split], data[split:]]:
            if piece:
                self.upstream.received(piece)


class Core:
    """A gateway with acme/model on two replicas. `events` are the settled usage events."""

    def __init__(
        self, folder: Path, world: World | None = None, *, replicas: tuple[int, ...] = (7001,), **settings: str
    ) -> None:
        self.clock = 1000.0
        self.world = world or World()
        if world is None:
            self.world.route("acme/model", *replicas)
        environ = {
            "BERTH_GATEWAY_DIR": str(folder),
            "REDIS_URL": "redis://127.0.0.1:1/0",
            "BERTH_SNAPSHOT_PUBLIC_KEY_FILE": "-",
            "BERTH_USAGE_KEY_FILE": "-",
            **settings,
        }
        config = Config.from_environ(environ)
        store = SnapshotStore(self.world.signer.public_key(), folder / "snapshot.bin", config.snapshot_max_age)
        self.log = _Lines()
        self.gateway = Gateway(
            config, store, Spool(folder), log=self.log, now=lambda: self.clock, wall=lambda: 1_800_000_000 + self.clock
        )
        assert self.gateway.offer_snapshot(self.world.signed()) is Verdict.APPLIED
        self.dialled: list[Dialled] = []
        self.gateway.dial = self._dial
        self.refuse_connections = False
        self.events: list[UsageEvent] = []
        settle, write = self.gateway.spool.settle, self.gateway.spool.write

        def watch(event: UsageEvent) -> None:
            settle(event)
            self.events.append(event)

        def watch_records(records: bytes, settled: int = 0) -> None:
            write(records, settled)
            if settled:
                found = [event for kind, event in unpacked(records) if kind == SETTLED]
                assert len(found) == settled
                self.events.extend(found)

        self.gateway.spool.settle = watch  # type: ignore[method-assign]
        self.gateway.spool.write = watch_records  # type: ignore[method-assign]

    def _dial(self, upstream: Upstream) -> None:
        if self.refuse_connections:
            upstream.failed()
            return
        made = Dialled(upstream)
        self.dialled.append(made)
        upstream.opened(made.wire)

    def client(self) -> tuple[Client, Wire]:
        client, wire = Client(self.gateway), Wire()
        client.opened(wire)
        return client, wire

    def ask(self, body: bytes | None = None, path: str = "/v1/chat/completions", **fields: Any) -> tuple[Client, Wire]:
        """A client that has sent one request."""
        client, wire = self.client()
        client.received(self.request(body, path, **fields))
        return client, wire

    def request(self, body: bytes | None = None, path: str = "/v1/chat/completions", **fields: Any) -> bytes:
        data = body if body is not None else self.gateway.encode(chat(**fields))
        return raw_post(path, data, self.world.token)

    @property
    def engine(self) -> Dialled:
        """The connection dialled last."""
        return self.dialled[-1]

    @property
    def asked(self) -> list[Seen]:
        return [request for each in self.dialled for request in each.requests]

    def pass_time(self, seconds: float) -> None:
        self.clock += seconds
        self.gateway.tick()

    def close(self) -> None:
        self.gateway.spool.close()


def unpacked(records: bytes) -> list[tuple[int, UsageEvent]]:
    """Kind and event of each record."""
    out: list[tuple[int, UsageEvent]] = []
    while records:
        length, crc, kind = HEADER.unpack(records[: HEADER.size])
        payload, records = records[HEADER.size : HEADER.size + length], records[HEADER.size + length :]
        assert crc32(payload, kind) == crc
        out += unpack(kind, payload)
    return out


class _Lines(Log):
    """Keeps lines instead of writing them."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def flush(self) -> None:
        self.written += [line for lines in self._lines for line in lines.split(b"\n")]
        self._lines.clear()


def whole_answer(words: list[str]) -> bytes:
    return ENGINE_HEAD + chunked(*chat_events(words))


def answers(data: bytes) -> list[Answer]:
    """Everything a client was sent, taken apart by its framing."""
    out = []
    while data:
        head, mark, data = data.partition(b"\r\n\r\n")
        assert mark, "half a head"
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        if status in (100, 204):
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body, data = _unchunk(data)
        elif "content-length" in headers:
            length = int(headers["content-length"])
            assert len(data) >= length, "half a body"
            body, data = data[:length], data[length:]
        else:
            body, data = data, b""
        out.append(Answer(status, headers, body))
    return out


def _unchunk(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, mark, data = data.partition(b"\r\n")
        assert mark, "half a chunk"
        length = int(size, 16)
        assert data[length : length + 2] == b"\r\n", "a chunk without end"
        body, data = body + data[:length], data[length + 2 :]
        if not length:
            return body, data
