"""The process: listening sockets, signals, periodic work, drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Protocol

import uvloop

from berth_gateway.alone import Alone
from berth_gateway.config import Config, ConfigError
from berth_gateway.contract import worker_key
from berth_gateway.edges import ClientEdge, Dialer
from berth_gateway.gateway import Gateway
from berth_gateway.snapshot import SnapshotStore, Store, load_public_key
from berth_gateway.snapshot_file import FileStore, SnapshotFileError
from berth_gateway.spool import Spool, SpoolError
from berth_gateway.tls import Certificate

BACKLOG = 2048
TICK_SECONDS = 0.25
SYNC_SECONDS = 0.04


def run(config: Config) -> None:
    """Serves until SIGTERM or SIGINT. Raises ConfigError with a sentence when it cannot start."""
    store = _store(config)
    usage_key = b"" if config.snapshot_file else _usage_key(config)
    try:
        spool = Spool(config.folder)
    except SpoolError as fault:
        raise ConfigError(str(fault)) from None
    certificate = Certificate(config.tls_certificate, config.tls_key) if config.tls_certificate else None
    sockets = _listen(config)
    gateway = Gateway(config, store, spool)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(gateway, sockets, usage_key, certificate))
    spool.close()
    gateway.log.flush()


def _store(config: Config) -> Store:
    if config.snapshot_file is not None:
        alone = FileStore(config.snapshot_file)
        try:
            alone.refresh(time.time())
        except SnapshotFileError as fault:
            raise ConfigError(str(fault)) from None
        return alone
    try:
        public_key = load_public_key(config.snapshot_public_key_file.read_bytes())
    except OSError as fault:
        raise ConfigError(f"{config.snapshot_public_key_file} cannot be read: {fault.strerror}.") from None
    except ValueError:
        raise ConfigError(f"{config.snapshot_public_key_file} holds no Ed25519 public key.") from None
    return SnapshotStore(public_key, config.folder / "snapshot.bin", config.snapshot_max_age)


def _usage_key(config: Config) -> bytes:
    try:
        usage_key = config.usage_key_file.read_bytes()
        if len(usage_key) != 32:
            usage_key = bytes.fromhex(usage_key.strip().decode("ascii"))
    except OSError as fault:
        raise ConfigError(f"{config.usage_key_file} cannot be read: {fault.strerror}.") from None
    except ValueError:
        usage_key = b""
    if len(usage_key) != 32:
        raise ConfigError(f"{config.usage_key_file} must hold 32 bytes, raw or in hexadecimal.")
    return worker_key(usage_key, config.worker) if config.worker else usage_key


def _listen(config: Config) -> list[socket.socket]:
    sockets = [_socket(config.bind, config.port, reuse_port=config.reuse_port)]
    if config.admin_port is not None:
        sockets.append(_socket("127.0.0.1", config.admin_port, reuse_port=False))
    return sockets


def _socket(address: str, port: int, *, reuse_port: bool) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((address, port))
    except OSError as fault:
        sock.close()
        raise ConfigError(
            f"The gateway cannot listen on {address} port {port}: {fault.strerror}. Stop what uses it, or choose another port."
        ) from None
    return sock


async def _serve(
    gateway: Gateway, sockets: list[socket.socket], usage_key: bytes, certificate: Certificate | None
) -> None:
    loop = asyncio.get_running_loop()
    gateway.dial = Dialer(loop)
    gateway.fast.soon = loop.call_soon
    _quieten(loop, gateway)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    party = _party(gateway, usage_key)
    jobs = [*party.jobs(), _tick(gateway), _keep_durable(gateway)]
    if gateway.tracing is not None:
        jobs.append(gateway.tracing.run())
    if certificate is not None:
        jobs.append(certificate.watch(gateway.log))
    work = [loop.create_task(job) for job in jobs]
    await party.ready()
    servers = [
        await loop.create_server(
            lambda: ClientEdge(gateway),
            sock=sockets[0],
            backlog=BACKLOG,
            ssl=certificate.context if certificate else None,
        )
    ]
    if len(sockets) > 1:
        servers.append(
            await loop.create_server(lambda: ClientEdge(gateway, admin=True), sock=sockets[1], backlog=BACKLOG)
        )
    gateway.log.info("listening", gateway=gateway.config.name, port=sockets[0].getsockname()[1])
    gateway.log.flush()
    # What exists by now stays: the collector need not walk through it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    stopping = loop.create_task(stop.wait())
    # A task that ends by itself is a fault of ours; the supervisor starts the process anew.
    done, _ = await asyncio.wait([stopping, *work], return_when=asyncio.FIRST_COMPLETED)
    for server in servers:
        server.close()
    await _drain(gateway)
    await _end([stopping, *work])
    gateway.fast.flush()
    gateway.fast.work()
    gateway.spool.sync()
    await party.close()
    if gateway.tracing is not None:
        await gateway.tracing.flush()
    gateway.log.info("stopped", gateway=gateway.config.name)
    for task in done:
        task.result()


class Party(Protocol):
    """Where a gateway has its snapshots from, and whom it tells: the control plane behind Valkey, or nobody."""

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run, each until cancelled."""

    async def ready(self) -> None:
        """Until requests may be judged."""

    async def close(self) -> None:
        """The process ends."""


def _party(gateway: Gateway, usage_key: bytes) -> Party:
    if isinstance(gateway.store, FileStore):
        return Alone(gateway, gateway.store)
    from berth_gateway.shared import Shared  # Valkey's client is a quarter of the memory of a gateway that needs none

    config = gateway.config
    return Shared(gateway, usage_key, lambda number: _usage_key(replace(config, worker=number)))


def _quieten(loop: asyncio.AbstractEventLoop, gateway: Gateway) -> None:
    """Faults become log lines of our form: an exception's text may quote what a client sent."""

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        gateway.log.error("loop_fault", error=type(context.get("exception")).__name__)

    loop.set_exception_handler(report)
    logging.getLogger("asyncio").propagate = False
    logging.getLogger("asyncio").addHandler(logging.NullHandler())


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancels until they have ended: a client library may swallow a cancellation that meets the end of an answer."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, left = await asyncio.wait(tasks, timeout=0.2)
        tasks = list(left)


async def _tick(gateway: Gateway) -> None:
    while True:
        await asyncio.sleep(TICK_SECONDS)
        for _ in gateway.steps():
            await asyncio.sleep(0)  # what has come in the meantime goes first


async def _keep_durable(gateway: Gateway) -> None:
    """Brings the spool to the disk, in a thread, so that no request waits for it."""
    spool = gateway.spool
    while True:
        await asyncio.sleep(SYNC_SECONDS)
        checkpoint = spool.checkpoint()
        if checkpoint is not None:
            try:
                await asyncio.to_thread(spool.make_durable, checkpoint)
            except OSError as fault:
                gateway.log.error("spool_sync_failed", errno=fault.errno)


async def _drain(gateway: Gateway) -> None:
    """New requests are refused, idle connections closed; what runs may finish within the bound."""
    gateway.draining = True
    gateway.log.info("draining", count=len(gateway.exchanges))
    try:
        async with asyncio.timeout(gateway.config.drain):
            while gateway.exchanges:  # noqa: ASYNC110 - the core that empties it knows no event loop
                await asyncio.sleep(0.05)
    except TimeoutError:
        gateway.cut_all()
    for client in list(gateway.clients):
        client.leave()
    await asyncio.sleep(0.05)  # the last bytes go out
