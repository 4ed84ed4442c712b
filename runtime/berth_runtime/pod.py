"""One replica in a pod: `python -m berth_runtime.pod --spec=… --token=… --state=… --models=… --host=… --status-port=…`.

What a pod is told lies in mounted files, and paths and address are the pod's own. What it tells goes to standard output,
where the cluster keeps it for whoever may read the pod's log: no network, no credential and no other way out is needed.
Every line is JSON, either a record of the log (log.py) or `{"status": …}` with the ReplicaStatus.

The last status also goes to the termination message, which outlives the container's log.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from berth_runtime.follow import Follower
from berth_runtime.log import Record, read_log
from berth_runtime.serve import EXIT_BAD_SPEC, EXIT_FAILED, lock, prepare, serve
from berth_runtime.spec import LaunchSpec, ModelFile, Phase, ReplicaStatus
from berth_runtime.specfile import BadSpec, check_spec, load_spec
from berth_runtime.supervise import Supervisor

MODELS: Final = "/models/"  # where the control plane says that the store is
_LOOK_SECONDS: Final = 0.2
_PROGRESS_SECONDS: Final = 2.0  # between two words about a phase that goes on
_METRICS_SECONDS: Final = 10.0  # between two words of a ready replica
_MOST_LAST_WORD: Final = 4096  # what Kubernetes keeps of a termination message


class Told(msgspec.Struct, frozen=True):
    """A line about the status."""

    status: ReplicaStatus


class Journal:
    """Writes to standard output what the replica's folder says, as it comes."""

    def __init__(self, folder: Path, descriptor: int = 1) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self._ended = threading.Event()
        self._number = 0
        self._last: ReplicaStatus | None = None
        self._thread = threading.Thread(target=self._follow, name="journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> ReplicaStatus | None:
        """Writes what is left; the last status."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._look()
        return self._last

    def _follow(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        for record in self._news():
            self._number = record.n
            self._write(record)
        status = read_status(self._folder)
        if status is not None and self._worth_telling(status):
            self._last = status
            self._write(Told(status))

    def _news(self) -> Iterator[Record]:
        return (record for record in read_log(self._folder) if record.n > self._number)

    def _worth_telling(self, status: ReplicaStatus) -> bool:
        if self._last is None or (status.phase, status.port) != (self._last.phase, self._last.port):
            return True
        pause = _METRICS_SECONDS if status.phase is Phase.READY else _PROGRESS_SECONDS
        return status.updated_at - self._last.updated_at >= pause

    def _write(self, told: Record | Told) -> None:
        with suppress(OSError):  # nobody reads: what serves goes on
            os.write(self._descriptor, msgspec.json.encode(told) + b"\n")


def read_status(folder: Path) -> ReplicaStatus | None:
    try:
        return msgspec.json.decode((folder / "status.json").read_bytes(), type=ReplicaStatus)
    except (OSError, msgspec.DecodeError):
        return None


def placed(spec: LaunchSpec, given: argparse.Namespace) -> LaunchSpec:
    """The spec with the paths and the address that are the pod's own."""

    def here(file: ModelFile) -> ModelFile:
        inside = file.path.removeprefix(MODELS)
        return file if inside == file.path else msgspec.structs.replace(file, path=str(given.models / inside))

    return msgspec.structs.replace(
        spec,
        files=tuple(map(here, spec.files)),
        adapters=tuple(
            msgspec.structs.replace(adapter, files=tuple(map(here, adapter.files))) for adapter in spec.adapters
        ),
        secret_file=str(given.token),
        state_dir=str(given.state),
        cache_dir=str(given.cache) if given.cache else None,
        host=given.host,
        nodes=given.nodes,
        node_rank=given.node_rank,
        leader=given.leader,
    )


def run(given: argparse.Namespace) -> int:
    """Runs the replica to its end; the exit status."""
    try:
        spec = placed(load_spec(given.spec), given)
        check_spec(spec, given.spec)
        engine = prepare(spec)
        if given.nodes > 1 and not engine.spans_nodes:
            return _refuse(given, "unsupported_option", f"The engine {spec.engine} of this runtime cannot span nodes.")
        if lock(spec) is None:
            raise BadSpec("The replica's folder is in use.")
    except BadSpec as error:
        return _refuse(given, "bad_spec", str(error))
    journal = Journal(given.state)
    status = EXIT_FAILED
    try:
        role = Supervisor if spec.node_rank == 0 else partial(Follower, leader_port=given.status_port)
        status = serve(spec, engine, journal.start, status_port=given.status_port, role=role)
    finally:
        last = journal.finish()
        if last is not None:
            _last_words(given.last_word, {"phase": last.phase, "reason": last.reason, "message": last.message})
    return status


def _refuse(given: argparse.Namespace, reason: str, message: str) -> int:
    _last_words(given.last_word, {"phase": Phase.FAILED, "reason": reason, "message": message})
    sys.stderr.write(f"{message}\n")
    return EXIT_BAD_SPEC


def _last_words(path: Path | None, words: dict[str, str | None]) -> None:
    if path is not None:
        with suppress(OSError):
            path.write_bytes(msgspec.json.encode(words)[:_MOST_LAST_WORD])


def main() -> int:
    """Exit status as of `berth_runtime serve`."""
    parser = argparse.ArgumentParser(prog="python -m berth_runtime.pod", description="Runs one replica in a pod.")
    parser.add_argument("--spec", type=Path, required=True, help="the launch spec, a JSON file")
    parser.add_argument("--token", type=Path, required=True, help="file with the bearer token")
    parser.add_argument("--state", type=Path, required=True, help="folder for status and log")
    parser.add_argument("--models", type=Path, default=Path(MODELS), help="where the model store is mounted")
    parser.add_argument("--cache", type=Path, help="folder for files that it fetches")
    parser.add_argument("--host", required=True, help="the pod's address")
    parser.add_argument("--status-port", type=int, required=True, help="for the kubelet's probes")
    parser.add_argument("--last-word", type=Path, help="file for the termination message")
    parser.add_argument("--nodes", type=int, default=1, help="how many pods run the replica together")
    parser.add_argument("--node-rank", type=int, default=0, help="which of them this is; 0 serves")
    parser.add_argument("--leader", default="", help="name of the pod with rank 0")
    given = parser.parse_args()
    os.umask(0o077)
    return run(given)


if __name__ == "__main__":
    sys.exit(main())
