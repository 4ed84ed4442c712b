"""One replica's life: fetch, verify, load, generate the first token, be ready, drain, end."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from berth_runtime.child import Child
from berth_runtime.engines import engine as events
from berth_runtime.engines.engine import Call, Engine
from berth_runtime.failure import HUNG, RESTARTED, Failure, Halt
from berth_runtime.files import write_atomically
from berth_runtime.lifeline import Lifeline
from berth_runtime.lines import Kept, LineFilter
from berth_runtime.log import ReplicaLog
from berth_runtime.prepare import bring_files, work_folder
from berth_runtime.probe import Probe
from berth_runtime.pulse import Pulse
from berth_runtime.scrub import scrub_devices
from berth_runtime.spec import EngineMetrics, LaunchSpec, Phase
from berth_runtime.status import StatusBoard
from berth_runtime.stoporder import drain_seconds
from berth_runtime.wake import Wake
from berth_runtime.warmup import Questions, warm

_POLL_SECONDS: Final = 0.1
_METRICS_SECONDS: Final = 1.0
_METRICS_TIMEOUT: Final = 10.0  # the engine answers between two batches, and one may take long on a CPU
_SCRUB_SECONDS: Final = 120.0
_BACKSTOP_SECONDS: Final = 10.0
_BACKOFF_SECONDS: Final = 1.0  # before the first restart; twice as long before each further one
_LONGEST_BACKOFF: Final = 60.0


class Supervisor:
    """Runs in the main thread. `order_stop` may be called from a signal handler."""

    def __init__(self, spec: LaunchSpec, engine: Engine, board: StatusBoard, log: ReplicaLog) -> None:
        self._spec = spec
        self._engine = engine
        self._board = board
        self._log = log
        self._wake = Wake()
        self._stop_ordered = False
        self._supervisor_gone = False
        self._child: Child | None = None
        self._port: int | None = None
        self._trouble: tuple[str, str] | None = None  # event and sentence from the engine's own output
        self._metrics: tuple[int, EngineMetrics] = (0, EngineMetrics())  # how often measured, and the last of them
        self._pulse = Pulse(spec.liveness_seconds)
        self._lives = 0  # how often the engine was started
        self._deadline = time.monotonic() + spec.start_deadline_seconds

    def order_stop(self) -> None:
        """Drain and end."""
        self._stop_ordered = True
        self._wake.up()

    def run(self) -> Phase:
        """Returns the final phase, which is also in the status file."""
        self._board.beat(self._log.tick)
        try:
            self._hold_lifeline()
            self._spec = bring_files(self._spec, self._board, self._log, self._progress)
            if self._spec.scrub:
                self._log.say("overwriting the devices' memory, which was another organisation's")
                scrub_devices(_SCRUB_SECONDS)
            self._log.say("all files are what they should be; starting the engine")
            self._live()
        except Failure as failure:
            self._end(Phase.FAILED, failure.reason, failure.message)
        except Halt as halt:
            self._end(Phase.STOPPED, halt.reason, halt.message)
        except Exception as error:  # noqa: BLE001 - whatever happens, no engine stays behind and the status says so
            self._end(Phase.FAILED, "agent_error", f"The runtime met an error of its own ({type(error).__name__}).")
        return self._board.phase

    def _live(self) -> None:
        """The engine's lives, one after the other, as long as the spec grants another."""
        while True:
            try:
                self._start()
                self._watch()
            except Failure as failure:
                if not self._lives_again(failure):
                    raise
                self._await_restart(failure)

    def _lives_again(self, failure: Failure) -> bool:
        """Of several nodes none can: the engines of the others belong to the life that has ended."""
        granted = self._lives <= self._spec.restarts and self._spec.nodes == 1
        return granted and failure.reason in RESTARTED and self._board.phase is Phase.READY

    def _await_restart(self, failure: Failure) -> None:
        """Ends what is left of the engine, and waits longer each time."""
        if self._child:
            self._child.finish()
        self._child, self._port, self._trouble = None, None, None
        self._log.say(failure.message)
        self._board.enter(Phase.LOADING, port=0, reason=failure.reason, message=failure.message)
        pause = min(_BACKOFF_SECONDS * 2 ** (self._lives - 1), _LONGEST_BACKOFF)
        self._deadline = time.monotonic() + pause + self._spec.start_deadline_seconds
        until = time.monotonic() + pause
        while time.monotonic() < until:
            self._pause()
        self._log.say(f"starting the engine again, for the {self._lives + 1}. time")

    def _start(self) -> None:
        self._launch()
        probe = self._wait_for_health()
        self._board.enter(Phase.WARMING, port=self._port)
        self._warm(probe)
        self._board.enter(Phase.READY)
        self._log.say("ready: the first token was generated")
        self._pulse.begin()
        threading.Thread(target=self._measure, args=(probe, self._lives), name="metrics", daemon=True).start()

    def _launch(self) -> None:
        self._lives += 1
        self._board.enter(Phase.LOADING)
        for name, content in self._engine.files(self._spec).items():
            write_atomically(work_folder(self._spec) / name, content)
        self._engine.prepare(self._spec)
        output = LineFilter(self._engine.rules, self._heard, self._log.withhold)
        self._child = Child(
            self._engine.command(self._spec),
            self._engine.environment(self._spec),
            self._engine.limits(self._spec),
            output,
            self._wake.up,
        )

    def _wait_for_health(self) -> Probe:
        while self._port is None:
            self._pause()
        probe = Probe(self._spec, self._port)
        while not self._healthy(probe):
            self._pause()
        return probe

    def _healthy(self, probe: Probe) -> bool:
        try:
            status, _ = probe.ask(Call("GET", self._engine.health_path), seconds=1)
        except OSError:
            return False
        return status == 200

    def _warm(self, probe: Probe) -> None:
        remaining = max(self._deadline - time.monotonic(), 1)
        ask = Questions(probe, remaining, self._pause, self._wake)
        warm(self._engine, self._spec, ask)
        if not self._engine.inner_ports:
            self._require_one_port()

    def _require_one_port(self) -> None:
        """Whatever else listens could be a way around the secret."""
        others = (self._child.listening_ports() if self._child else set()) - {self._port}
        if others:
            raise Failure("unexpected_port", f"The engine also listens on port {min(others)}, which nothing asked for.")

    def _watch(self) -> None:
        while not self._stop_ordered:
            self._wake.wait(_METRICS_SECONDS)
            self._check()
            self._check_pulse()
        self._drain()
        raise Halt

    def _check_pulse(self) -> None:
        silence = self._pulse.missing()
        if silence:
            raise Failure(
                HUNG, f"The engine runs but does not work: {silence} for {self._spec.liveness_seconds} seconds."
            )

    def _drain(self) -> None:
        """Waits until nothing runs, measured twice after the order came, or until the time is over."""
        self._board.enter(Phase.DRAINING)
        began = time.monotonic()
        measured, idle = self._metrics[0] + 1, 0  # a measurement may be under way: it does not count
        while time.monotonic() - began < drain_seconds(self._spec) and idle < 2:
            self._wake.wait(_POLL_SECONDS)
            self._check()
            count, metrics = self._metrics
            if count > measured:
                measured = count
                idle = idle + 1 if metrics.running == 0 and not metrics.queued else 0

    def _measure(self, probe: Probe, life: int) -> None:
        path = self._engine.metrics_path or self._engine.health_path
        while life == self._lives:
            try:
                status, answer = probe.ask(Call("GET", path), _METRICS_TIMEOUT)
            except OSError:
                status, answer = 0, b""
            if status == 200 and life == self._lives:
                metrics = self._with_memory(self._engine.metrics(answer.decode("utf-8", "replace")))
                self._metrics = (self._metrics[0] + 1, metrics)
                self._pulse.felt(metrics)
                self._board.measured(metrics)
            time.sleep(_POLL_SECONDS if self._stop_ordered else _METRICS_SECONDS)

    def _with_memory(self, metrics: EngineMetrics) -> EngineMetrics:
        child = self._child
        return msgspec.structs.replace(metrics, memory=child.resident_memory() or None) if child else metrics

    def _pause(self) -> None:
        """A short wait on the way to READY, with everything that can end it."""
        self._wake.wait(_POLL_SECONDS)
        self._check_start()

    def _check_start(self) -> None:
        self._check()
        if self._stop_ordered:
            raise Halt
        if time.monotonic() > self._deadline:
            raise Failure(
                "start_timeout",
                f"The replica was not ready within {self._spec.start_deadline_seconds} seconds "
                f"(it was still {self._board.phase}).",
            )

    def _check(self) -> None:
        if self._supervisor_gone:
            raise Halt("supervisor_ended", "Berth itself has ended, so the replica ended too.")
        if self._child and (status := self._child.ended()) is not None:
            self._child.finish()  # also reads what it said last
            raise self._why(status)
        self._check_memory()

    def _check_memory(self) -> None:
        """The measured limit. The cage's own, which cannot be outrun, has to leave room for stacks never used."""
        limit = self._spec.memory_limit
        if limit and self._child and (used := self._child.private_memory()) > limit:
            raise Failure(
                events.OUT_OF_MEMORY,
                f"The engine took {used >> 20} MiB of memory and may have {limit >> 20} MiB. "
                "Deploy with fewer slots, a shorter context or a larger tier.",
            )

    def _why(self, status: int) -> Failure:
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        if self._trouble:
            reason, sentence = self._trouble
            return Failure(reason, f"The engine {how}: {sentence}.")
        return Failure("engine_exited", f"The engine {how} while the replica was {self._board.phase}.")

    def _progress(self, done: int, total: int) -> None:
        self._board.progress(done, total)
        self._check_start()

    def _heard(self, line: Kept) -> None:
        self._log.say(line.text, source="engine")
        # Only while it is loading: later the engine handles text of strangers, and a line could be made by one.
        if self._board.phase is Phase.LOADING:
            if line.event == events.LISTENING and self._port is None:
                self._port = int(line.numbers["port"])
            elif line.event in (
                events.OUT_OF_MEMORY,
                events.MODEL_UNREADABLE,
                events.TEMPLATE_FAILS,
                events.ENGINE_TOO_OLD,
            ):
                self._trouble = (line.event, line.text)
            self._wake.up()

    def _hold_lifeline(self) -> None:
        if self._spec.lifeline:
            try:
                Lifeline(Path(self._spec.lifeline)).watch(self._on_supervisor_gone)
            except OSError:
                raise Halt("supervisor_ended", "There is no supervisor to run under.") from None

    def _on_supervisor_gone(self) -> None:
        self._supervisor_gone = True
        self._wake.up()
        time.sleep(_BACKSTOP_SECONDS)
        os._exit(1)  # the main thread hangs; the kernel ends the engine with it

    def _end(self, phase: Phase, reason: str | None, message: str | None) -> None:
        if self._child:
            self._child.finish()
        self._log.say(message or "ended as asked")
        self._log.tick()
        self._board.enter(phase, reason=reason, message=message)
