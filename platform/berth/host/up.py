"""`python -m berth.host up`: from nothing, or from where it stopped, to a platform that answers; then supervises it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import subprocess
import time
from typing import Any

from berth.env import read_flag
from berth.host.errors import HostError
from berth.host.home import Lock, demand_free, demand_ports
from berth.host.lines import Lines
from berth.host.machine import PLATFORM_ROOT, Machine
from berth.host.progress import Progress, Step
from berth.host.service import Service, describe, last_line
from berth.host.serving import Answer, Asking, welcome
from berth.host.supervisor import Interrupted, Supervisor

START_PATIENCE = 120.0  # seconds for a program to answer for the first time
MODEL_PATIENCE = 300.0  # seconds for the sample model to answer on the first start
RESUME_PATIENCE = 90.0  # and on later ones
GIVE_UP_AFTER = 4  # deaths while starting


class Up:
    """One run of the platform on this machine."""

    def __init__(self, machine: Machine, progress: Progress) -> None:
        self.machine = machine
        self.home = machine.home
        self.progress = progress
        self.lock = Lock(self.home.run / "supervisor.lock")
        self.supervisor = Supervisor(Lock(self.home.lifeline), progress.say)
        self._told: dict[str, int | None] = {}

    def run(self) -> int:
        """Returns the exit code. Raises HostError when this machine does not let Berth start."""
        begun = time.monotonic()
        read_flag("BERTH_DEMO", self.machine.environ)
        demand_ports(self.machine.ports)
        self.home.prepare()
        self._only_one()
        self.supervisor.take_signals()
        try:
            self._start()
            self._serve(begun)
        except Interrupted:
            self.progress.say("\nStopping: requests in progress are finished first.")
        finally:
            self.supervisor.stopping = True
            self._write_state("stopping")
            self.supervisor.stop()
            self.home.running.unlink(missing_ok=True)
            self.lock.release()
        self.progress.say("Berth has stopped. Its data is kept; `make up` resumes it.")
        return 0

    def _only_one(self) -> None:
        state = self.home.read(self.home.running)
        patience = 30.0 if state.get("state") == "stopping" else 3.0
        if not self.lock.acquire(patience):
            state = self.home.read(self.home.running)
            if not state:  # it tells of itself once PostgreSQL runs
                raise HostError(
                    f"Berth is being started already for BERTH_HOME={self.home.folder}. Wait for that one, or set BERTH_HOME, "
                    "BERTH_PORT and BERTH_GATEWAY_PORT to run a second one."
                )
            raise HostError(
                f"Berth is running already for BERTH_HOME={self.home.folder} (process {state['pid']}): its "
                f"dashboard is {state['dashboard_url']}. Stop that one with Ctrl-C first, or set BERTH_HOME, BERTH_PORT and "
                "BERTH_GATEWAY_PORT to run a second one."
            )
        # Engines of a killed supervisor hold the lifeline for the moment that they need to end.
        if not self.supervisor.lifeline.acquire(15.0):
            raise HostError(
                f"Processes of an earlier run still hold {self.home.lifeline}. Wait until they have ended, then try again."
            )

    def _start(self) -> None:
        machine = self.machine
        demand_free(machine.ports)
        machine.settle()
        if machine.postgres is not None and not machine.postgres.initialised:
            with self.progress.step("PostgreSQL's data folder", usual=3) as step:
                step.tick()
                machine.postgres.initialise()
        foundations = machine.foundations()
        for service in foundations:
            self.supervisor.add(service, foundation=True)
        if foundations:
            with self.progress.step(" and ".join(service.title for service in foundations), usual=1) as step:
                self._await(step, foundations)
                step.outcome = "ready"
        if self._schema_is_current() and self._facts() is not None:
            self._launch_programs()
        else:
            self._first_run()
        with self.progress.step("Dashboard, gateway and worker", usual=5) as step:
            self._await(step, self.supervisor.services)
            step.outcome = "ready"

    def _serve(self, begun: float) -> None:
        first = not self.home.started_before
        facts = self._facts() or {}
        if facts.get("model") and facts.get("api_key"):
            with self.progress.step(f"First answer of {facts['model']}", usual=8) as step:
                answer = self._await_model(step, facts, MODEL_PATIENCE if first else RESUME_PATIENCE)
            if not answer.ok:
                self.progress.say(_no_answer(facts, answer))
        if first:
            self.home.end_first_start()
        self.home.write(self.home.timings, dict(self.progress.timings))
        self.progress.say(welcome(facts, str(self.home.folder), first=first))
        self.progress.say(f"Platform started in {time.monotonic() - begun:.1f} s.")
        self._write_state("running")
        while True:
            self.supervisor.tick()
            if self._pids() != self._told:
                self._write_state("running")
            time.sleep(0.2)

    def _launch_programs(self) -> None:
        for service in self.machine.programs():
            self.supervisor.add(service)
        self._write_state("starting")

    def _first_run(self) -> None:
        """Runs the program that migrates; starts the others as soon as it has."""
        with contextlib.ExitStack() as open_step:
            # Begun here: the program loads Django before it can say anything.
            step = open_step.enter_context(self.progress.step("Database schema", usual=5))
            process = self.machine.first_run()
            self.supervisor.helpers.add(process.pid)
            try:
                self._follow(process, open_step, step)
            finally:
                if process.poll() is None:
                    process.kill()
                code = process.wait()
                self.supervisor.helpers.discard(process.pid)
        if code != 0:
            raise HostError(self._why_not_set_up(code))
        self._stamp_schema()

    def _follow(self, process: subprocess.Popen[bytes], open_step: contextlib.ExitStack, begun: Step) -> None:
        """Shows what the program tells until it ends; `begun` is the step that its first `done` ends."""
        if process.stdout is None:
            raise ValueError("the first run needs a pipe")
        lines = Lines(process.stdout.fileno())
        step: Step | None = begun
        while (batch := lines.read()) is not None:
            for message in batch:
                if "step" in message:
                    step = open_step.enter_context(self.progress.step(message["step"], message.get("usual")))
                elif "done" in message and step is not None:
                    step.outcome, step = message["done"], None
                    open_step.pop_all().close()
                elif "migrated" in message:
                    self._launch_programs()
                elif "note" in message:
                    self.progress.say(message["note"])
                elif "error" in message:
                    raise HostError(message["error"])
            self.supervisor.tick()
            if step is not None:
                step.tick()
            time.sleep(0.05)
        if step is not None:  # it ended in the middle of something
            raise HostError(self._why_not_set_up(process.wait()))

    def _why_not_set_up(self, code: int) -> str:
        log = self.home.logs / "firstrun.log"
        return f"Setting up ended with {describe(code)}. The last line of its log {log} is: {last_line(log)}"

    def _await(self, step: Step, services: list[Service]) -> None:
        """Waits until all are ready. A program that keeps dying is not waited for."""
        deadline = time.monotonic() + START_PATIENCE
        waiting = list(services)
        while waiting := [service for service in waiting if not service.ready()]:
            self.supervisor.tick()
            step.note = "waiting for " + ", ".join(service.title for service in waiting)
            step.tick()
            for service in waiting:
                if service.deaths >= GIVE_UP_AFTER or time.monotonic() > deadline:
                    raise HostError(service.why_not())
            time.sleep(0.03)

    def _await_model(self, step: Step, facts: dict[str, Any], patience: float) -> Answer:
        deadline = time.monotonic() + patience
        while True:
            asking = Asking(self.machine.gateway_port, facts["api_key"], facts["model"])
            while (answer := asking.answer()) is None:
                self.supervisor.tick()
                step.tick()
                time.sleep(0.02)
            if answer.ok or time.monotonic() > deadline or not answer.may_change:
                step.outcome = "answered" if answer.ok else f"no answer ({answer.code or answer.status})"
                return answer
            self.supervisor.tick()
            step.note = answer.code.replace("_", " ")
            step.tick()
            time.sleep(0.1)

    def _facts(self) -> dict[str, Any] | None:
        """What the first start decided, or None before it."""
        facts = self.home.read(self.home.demo) or self.home.read(self.home.demo_pending)
        if not facts and not self.home.started_before:
            return None
        # The addresses are today's settings, not those of the first start.
        return facts | {"dashboard_url": self.machine.dashboard_url, "api_base": self.machine.api_base}

    def _schema_is_current(self) -> bool:
        """Whether the embedded database was migrated by exactly this code. A foreign database is always looked into."""
        if self.machine.postgres is None:
            return False
        stamp = self.machine.postgres.folder / "schema"
        return stamp.exists() and stamp.read_text() == schema_fingerprint()

    def _stamp_schema(self) -> None:
        if self.machine.postgres is not None:
            (self.machine.postgres.folder / "schema").write_text(schema_fingerprint())

    def _pids(self) -> dict[str, int | None]:
        return {service.name: service.pid for service in [*self.supervisor.foundations, *self.supervisor.services]}

    def _write_state(self, state: str) -> None:
        """For whoever looks. A disk that is full now is no reason to end what runs: the next round writes it."""
        pids = self._pids()
        told = {
            "pid": os.getpid(),
            "state": state,
            "dashboard_url": self.machine.dashboard_url,
            "api_base": self.machine.api_base,
            "pids": pids,
        }
        with contextlib.suppress(OSError):
            self.home.write(self.home.running, told)
            self._told = pids


def schema_fingerprint() -> str:
    """Changes with every migration, ours or a dependency's."""
    digest = hashlib.sha256()
    for path in sorted(PLATFORM_ROOT.glob("berth/*/migrations/*.py")):
        digest.update(f"{path.relative_to(PLATFORM_ROOT)}\0".encode() + path.read_bytes() + b"\0")
    for package in ("django", "django-allauth"):
        digest.update(f"{package} {importlib.metadata.version(package)}\0".encode())
    return digest.hexdigest()


def _no_answer(facts: dict[str, Any], answer: Answer) -> str:
    why = answer.message or "the gateway could not be reached"
    return (
        f"The sample model {facts['model']} does not answer: {why} Everything else runs; the deployment's page in the "
        "dashboard shows what happens."
    )
