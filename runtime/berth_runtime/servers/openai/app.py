"""The server: who may ask what, and how a request and the worker come together."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import signal
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from berth_runtime.servers.openai import answers
from berth_runtime.servers.openai.asks import decode_body
from berth_runtime.servers.openai.decoder import Decoder, Refusal
from berth_runtime.servers.openai.http import Answer, Request, Server
from berth_runtime.servers.openai.worker import Accepted, Counters, Ended, Job, Piece, Report, Worker

_EXIT_FATAL: Final = 3
_GENERATING: Final = {"/v1/chat/completions": True, "/v1/completions": False}
_PATHS: Final = {"/health": "GET", "/metrics": "GET", "/v1/models": "GET", "/settings": "GET"} | dict.fromkeys(
    _GENERATING, "POST"
)


class App:
    """Everything but the model."""

    def __init__(self, worker: Worker, decoder: Decoder, model: str, secret: str, settings: dict[str, object]) -> None:
        self._worker = worker
        self._decoder = decoder
        self._model = model
        self._secret = f"Bearer {secret}"
        self._settings = settings
        self._created = int(time.time())

    async def handle(self, request: Request, answer: Answer) -> None:
        method = _PATHS.get(request.path)
        if request.path == "/health" and request.method == "GET":
            return await answer.whole(200, b'{"status":"ok"}')
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode("latin-1"), self._secret.encode()):
            return await answer.whole(401, answers.error(401, "The key is not this engine's.", "invalid_api_key"))
        if method is None:
            return await answer.whole(404, answers.error(404, "There is no such path.", "not_found"))
        if method != request.method:
            return await answer.whole(405, answers.error(405, "This path takes another method.", "method_not_allowed"))
        if request.path in _GENERATING:
            return await self._generate(request, answer, chat=_GENERATING[request.path])
        if request.path == "/metrics":
            return await answer.whole(200, exposition(self._worker.counters).encode(), "text/plain; version=0.0.4")
        if request.path == "/settings":
            return await answer.whole(200, msgspec.json.encode(self._settings))
        model = {"id": self._model, "object": "model", "created": self._created, "owned_by": "berth"}
        return await answer.whole(200, msgspec.json.encode({"object": "list", "data": [model]}))

    async def _generate(self, request: Request, answer: Answer, *, chat: bool) -> None:
        try:
            body = decode_body(request.body, chat)
        except Refusal as raised:
            return await answer.whole(400, answers.refusal(raised))
        loop = asyncio.get_running_loop()
        reports: asyncio.Queue[Report] = asyncio.Queue()

        def report(what: Report) -> None:
            loop.call_soon_threadsafe(reports.put_nowait, what)

        job = Job(body, report)
        if not self._worker.submit(job):
            busy = answers.error(503, "Too many requests wait already. Try again.", "overloaded")
            return await answer.whole(503, busy, more="Retry-After: 1\r\n")
        gone: asyncio.Task[Any] = asyncio.create_task(_left(request))
        try:
            await self._relay(reports, answer, gone)
        finally:
            gone.cancel()
            self._worker.cancel(job)
        return None

    async def _relay(self, reports: asyncio.Queue[Report], answer: Answer, gone: asyncio.Task[Any]) -> None:
        first = await _next(reports, gone)
        if isinstance(first, Ended) and first.refusal:
            return await answer.whole(400, answers.refusal(first.refusal))
        if not isinstance(first, Accepted):
            if first is not None:
                await answer.whole(500, answers.error(500, "The engine failed.", "engine_failed"))
            return None
        prefix = "chatcmpl-" if first.ask.chat else "cmpl-"
        writer = answers.Writer(
            first.ask, prefix + secrets.token_hex(12), int(time.time()), self._model, self._decoder.show
        )
        if first.ask.stream:
            return await self._stream(writer, reports, answer, gone)
        return await self._whole(writer, reports, answer, gone)

    async def _stream(
        self,
        writer: answers.Writer,
        reports: asyncio.Queue[Report],
        answer: Answer,
        gone: asyncio.Task[Any],
    ) -> None:
        await answer.begin()
        await answer.send(writer.opening())
        while (report := await _next(reports, gone)) is not None:
            if isinstance(report, Piece):
                writer.produced = report.produced
                if report.text:
                    await answer.send(writer.piece(report.text, list(report.drawn)))
            elif isinstance(report, Ended):
                writer.produced, writer.finish = report.produced, report.finish
                await answer.send(writer.ending() if report.finish else writer.failure())
                return await answer.end()
        return None

    async def _whole(
        self,
        writer: answers.Writer,
        reports: asyncio.Queue[Report],
        answer: Answer,
        gone: asyncio.Task[Any],
    ) -> None:
        while (report := await _next(reports, gone)) is not None:
            if isinstance(report, Piece):
                writer.collect(report.text, list(report.drawn))
            elif isinstance(report, Ended):
                writer.produced, writer.finish = report.produced, report.finish
                if report.finish:
                    return await answer.whole(200, writer.whole())
                return await answer.whole(500, answers.error(500, "The engine failed.", "engine_failed"))
        return None


async def _left(request: Request) -> None:
    await request.gone.wait()


async def _next(reports: asyncio.Queue[Report], gone: asyncio.Task[Any]) -> Report | None:
    """The next report; None when the client has left."""
    if gone.done():
        return None
    if not reports.empty():
        return reports.get_nowait()
    report = asyncio.create_task(reports.get())
    both: set[asyncio.Task[Any]] = {report, gone}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if report.done():
        return report.result()
    report.cancel()
    return None


def exposition(counters: Counters) -> str:
    """The counters in Prometheus' text format."""
    lines = [
        f"berth_engine_requests_running {counters.running}",
        f"berth_engine_requests_waiting {counters.queued}",
        f"berth_engine_prompt_tokens_total {counters.prompt_tokens}",
        f"berth_engine_generation_tokens_total {counters.completion_tokens}",
        f"berth_engine_steps_total {counters.steps}",
        f"berth_engine_time_to_first_token_seconds_sum {counters.ttft_seconds:.6f}",
        f"berth_engine_time_to_first_token_seconds_count {counters.ttft_count}",
        *(f'berth_engine_requests_total{{end="{end}"}} {count}' for end, count in counters.requests.items()),
    ]
    return "\n".join(lines) + "\n"


def arguments() -> ArgumentParser:
    """The command line that all of these servers take."""
    parser = ArgumentParser(allow_abbrev=False)
    for name in ("model", "host", "alias", "secret-file"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("port", "slots", "context", "threads"):
        parser.add_argument(f"--{name}", required=True, type=int)
    return parser


def serve(
    given: Namespace, load: Callable[[Namespace], Decoder], settings: Callable[[Decoder], dict[str, object]]
) -> int:
    """Loads the model in the thread that will own it and serves until it is told to end. Exit status 1: it does not load."""
    loaded: list[Decoder | None] = []
    ready = threading.Event()
    worker: list[Worker] = []

    def own() -> None:
        try:
            decoder = load(given)
        except Exception as error:  # noqa: BLE001 - C++ exceptions arrive as any type, and their text may hold anything
            sys.stderr.write(f"server not started: {'MemoryError' if _memory(error) else type(error).__name__}\n")
            loaded.append(None)
            ready.set()
            return
        loaded.append(decoder)
        worker.append(Worker(decoder, given.slots, _fatal))
        ready.set()
        worker[0].run()

    threading.Thread(target=own, name="model", daemon=True).start()
    ready.wait()
    decoder = loaded[0]
    if decoder is None:
        sys.stderr.flush()
        return 1
    secret = Path(given.secret_file).read_text().strip()
    app = App(worker[0], decoder, given.alias, secret, settings(decoder))
    asyncio.run(_listen(app, given.host, given.port))
    return 0


async def _listen(app: App, host: str, port: int) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = Server(app.handle)
    listening = await server.listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    sys.stderr.write(f"listening on http://{shown}:{listening}\n")
    sys.stderr.flush()
    await stopped.wait()


def _memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "bad_alloc" in str(error) or "allocate memory" in str(error).lower()


def _fatal() -> None:
    """The library cannot be trusted any more: the agent starts the engine anew. Waits for answers that are on their way."""
    sys.stderr.write("engine failed\n")
    sys.stderr.flush()
    time.sleep(0.5)
    os._exit(_EXIT_FATAL)
