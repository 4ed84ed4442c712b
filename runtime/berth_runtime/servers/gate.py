"""A door before an engine whose own server lets in more than Berth does. Runs as a file, with little more than the standard library.

    python -I -B gate.py SETTINGS -- program argument…

It starts the engine, waits until it answers, then listens on the one declared port. Who does not have the secret gets
401, a path that is not on the list gets 404; everything else passes byte for byte, each connection on one of its own to
the engine, so that an engine notices at once when its client leaves. It ends with the engine, and the engine with it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

if __name__ == "__main__":  # isolated: the runtime is found by this file's place, not by the environment
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from berth_runtime.cage import Limits, caged
from berth_runtime.servers import gatewire

_HEAD_BYTES = 64 * 1024
_POLL_SECONDS = 0.2
_HELD: list[subprocess.Popen[bytes]] = []
INNER_PORT = "{inner port}"  # stands in the engine's arguments and environment for the port that was chosen
_INHERITED = 1 << 20  # open files: as many as this process may have
_PASSED_HEADERS = (
    b"content-type:",
    b"content-length:",
    b"transfer-encoding:",
    b"accept:",
    b"expect:",
    b"x-request-id:",
)


@dataclass(frozen=True)
class Settings:
    """What the door is told, as JSON."""

    host: str
    port: int
    secret_file: str
    health: str  # path of the engine that answers 200 once it can serve
    allowed: tuple[tuple[str, str], ...]  # method and path; no other is passed on
    socket: str | None = None  # the engine's Unix socket; else
    inner_port: int | None = None  # its port on loopback
    inner_key: bool = False  # the engine demands the secret too, as a bearer token
    slots: int | None = None  # the door counts requests itself, on `/metrics`; so many are worked on, the others wait
    inner_metrics: str | None = None  # path of the engine's own metrics, which then follow the door's


class Engine:
    """The engine's address."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._settings.socket is not None:
            return await asyncio.open_unix_connection(self._settings.socket, limit=_HEAD_BYTES)
        return await asyncio.open_connection("127.0.0.1", self._settings.inner_port, limit=_HEAD_BYTES)

    async def ask(self, method: str, path: str, body: bytes = b"", seconds: float = 10) -> tuple[int, bytes]:
        """One request of our own. Raises OSError, TimeoutError."""
        async with asyncio.timeout(seconds):
            reader, writer = await self.connect()
            try:
                head = f"{method} {path} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\nContent-Type: application/json\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                return await gatewire.response(reader)
            finally:
                writer.close()


class Gate:
    """Lets in who may come in."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._settings = settings
        self._engine = engine
        self._secret = Path(settings.secret_file).read_text().strip().encode()
        self._allowed = {(method.encode(), path.encode()) for method, path in settings.allowed}
        self._inside = 0  # requests that the engine has, where the door counts

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, from its first request to its end."""
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # one side left, or the client speaks something else
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        refusal = self._refusal(head)
        if refusal:
            return await gatewire.answer(writer, *refusal)
        if self._settings.slots and head.startswith(b"GET /metrics "):
            return await self._tell(writer, self._settings.slots)
        self._inside += 1
        try:
            return await self._pass(head, reader, writer)
        finally:
            self._inside -= 1

    async def _tell(self, writer: asyncio.StreamWriter, slots: int) -> None:
        """The door's own counts: each connection has one request, so they are those inside."""
        running = min(self._inside, slots)
        lines = (
            f"berth_door_requests_running {running}\nberth_door_requests_waiting {self._inside - running}\n".encode()
        )
        if self._settings.inner_metrics:
            with suppress(OSError, TimeoutError):
                status, more = await self._engine.ask("GET", self._settings.inner_metrics)
                lines += more if status == 200 else b""
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(lines)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + lines)
        await writer.drain()

    async def _pass(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await self._engine.connect()
        except OSError:
            return await gatewire.answer(writer, 503, "engine_unreachable")
        try:
            ways = {
                asyncio.ensure_future(self._requests(head, reader, inner_writer)),
                asyncio.ensure_future(gatewire.copy(inner_reader, writer)),
            }
            # Whoever leaves first, client or engine: the other side's connection ends too.
            _, rest = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in rest:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            inner_writer.transport.abort()
        return None

    async def _requests(self, head: bytes, reader: asyncio.StreamReader, inner: asyncio.StreamWriter) -> None:
        """Requests of one connection, one after the other. Ends when the client leaves or asks for what it may not."""
        while True:
            inner.write(self._passed(head))
            await gatewire.body(head, reader, inner)
            head = await reader.readuntil(b"\r\n\r\n")
            if self._refusal(head):
                return

    def _refusal(self, head: bytes) -> tuple[int, str] | None:
        lines = head.split(b"\r\n")
        words = lines[0].split(b" ")
        if len(words) != 3 or words[2] != b"HTTP/1.1":
            return 400, "bad_request"
        method, path = words[0], words[1].partition(b"?")[0]
        if (method, path) == (b"GET", self._settings.health.encode()):
            return None
        given = [line.partition(b":")[2].strip() for line in lines[1:] if line.lower().startswith(b"authorization:")]
        if len(given) != 1 or not hmac.compare_digest(given[0], b"Bearer " + self._secret):
            return 401, "unauthorized"
        if (method, path) not in self._allowed:
            return 404, "not_found"
        return None

    def _passed(self, head: bytes) -> bytes:
        """The head with only what an engine needs to know. Queries are dropped: no allowed path has one."""
        lines = head.split(b"\r\n")
        method, target, version = lines[0].split(b" ")
        kept = [line for line in lines[1:] if line.lower().startswith(_PASSED_HEADERS)]
        if self._settings.inner_key:
            kept.append(b"Authorization: Bearer " + self._secret)
        if self._settings.slots:
            kept.append(b"Connection: close")  # one request a connection, so that they can be counted
        first = b" ".join((method, target.partition(b"?")[0], version))
        return b"\r\n".join((first, b"Host: engine", *kept, b"", b""))


async def _healthy(engine: Engine, path: str) -> bool:
    try:
        status, _ = await engine.ask("GET", path, seconds=2)
    except (OSError, TimeoutError):
        return False
    return status == 200


async def run(settings: Settings, argv: list[str], prepare: Callable[[Engine], Awaitable[bool]] | None = None) -> int:
    """Starts the engine and keeps the door until one of the two ends; the engine's exit status.

    `prepare` is called once the engine answers, before anybody is let in; False: nobody ever is.
    """
    if settings.socket is not None:
        _clear(Path(settings.socket))
    elif settings.inner_port == 0:
        settings = replace(settings, inner_port=_free_port())
    argv = [word.replace(INNER_PORT, str(settings.inner_port)) for word in argv]
    # Caged once more, so that it ends with this process too. The limits are inherited.
    environment = {name: value.replace(INNER_PORT, str(settings.inner_port)) for name, value in os.environ.items()}
    child = await asyncio.create_subprocess_exec(
        *caged(argv, Limits(file_bytes=None, open_files=_INHERITED)),
        stdin=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    _leave_nobody()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, child)
    ended = asyncio.ensure_future(child.wait())
    engine = Engine(settings)
    while not ended.done() and not await _healthy(engine, settings.health):
        await asyncio.wait({ended}, timeout=_POLL_SECONDS)
    if not ended.done() and prepare and not await prepare(engine):
        _end(child)
        await ended
    if not ended.done():
        gate = Gate(settings, engine)
        server = await asyncio.start_server(gate.serve, settings.host, settings.port, limit=_HEAD_BYTES, backlog=1024)
        port = server.sockets[0].getsockname()[1]
        sys.stderr.write(f"listening on http://{settings.host}:{port}\n")
        sys.stderr.flush()
        await ended
        server.close()
    if settings.socket is not None:
        _leave(Path(settings.socket))
    return child.returncode if child.returncode is not None and child.returncode > 0 else 1


_REAPER = "import os, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), 9)"


def _leave_nobody() -> None:
    """However this process ends, all that the engine has started ends too: some engines' own children outlive their parent.

    Another process, of another group, waits for the end of a pipe that this one alone holds.
    """
    if os.getpgrp() == os.getpid():  # the group is the engine's alone
        command = [sys.executable, "-I", "-S", "-c", _REAPER, str(os.getpid())]
        quiet = subprocess.DEVNULL
        _HELD.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)
        )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _clear(path: Path) -> None:
    """The socket's folder is there, ours alone, and holds no socket of an earlier life. Raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    facts = path.parent.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077 or path.parent.is_symlink():
        raise PermissionError("the socket's folder is not ours alone")
    path.unlink(missing_ok=True)


def _leave(path: Path) -> None:
    """Removes the socket, and its folder if that was made for it alone."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        if path.parent.name.startswith("berth-"):
            path.parent.rmdir()


def _end(child: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        child.terminate()


def settings_of(text: str) -> Settings:
    """Raises TypeError, ValueError."""
    given = json.loads(text)
    given["allowed"] = tuple((method, path) for method, path in given["allowed"])
    return Settings(**given)


def main() -> int:
    """Exit status: the engine's."""
    settings = settings_of(sys.argv[1])
    return asyncio.run(run(settings, sys.argv[3:]))


if __name__ == "__main__":
    sys.exit(main())
