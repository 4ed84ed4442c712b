"""Engines whose own server lets in more than Berth does: a door of ours (`servers/gate.py`) stands before it."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from berth_runtime.cage import Limits
from berth_runtime.config import Setting, read
from berth_runtime.engines.engine import ENGINE_TOO_OLD, LISTENING, Call, Engine
from berth_runtime.failure import Failure
from berth_runtime.lines import Rule
from berth_runtime.prepare import work_folder
from berth_runtime.spec import LaunchSpec

# Which device a replica may use is decided outside; the engine has to be told in the driver's own words.
DEVICES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_LIBRARIES: Final = ("LD_LIBRARY_PATH", "CUDA_HOME")  # where an image keeps its driver's libraries
_SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_FOLDER_BYTES: Final = 64  # of the folder of sockets: the kernel takes 107, and vLLM's own have names of 36
_FILE_BYTES: Final = 8 << 30  # compiled kernels, and memory that processes share by files

GATE_RULES: Final = (
    Rule(
        r"listening on http://(?:[\d.]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d+)",
        "listening on port {port}",
        LISTENING,
    ),
    Rule(
        r"[\w.-]+(?: serve)?: error: (?:unrecognized arguments|argument --[a-z-]+): .*",
        "the engine does not know one of its arguments: it is of another version than Berth works with",
        ENGINE_TOO_OLD,
    ),
)


class GatedEngine(Engine):
    """Subclasses name the program, its setting, and what passes the door."""

    program: ClassVar[str]  # looked for on the PATH
    setting: ClassVar[Setting]
    server: ClassVar[str] = "gate.py"
    rules: ClassVar[tuple[Rule, ...]]
    by_socket: ClassVar[bool] = True  # it can listen on a Unix socket

    def allowed(self) -> tuple[tuple[str, str], ...]:
        """Method and path of what passes the door."""
        posts = tuple(("POST", f"/v1/{endpoint}") for endpoint in self.capabilities().endpoints)
        gets = ("/v1/models",) if self.metrics_path is None else ("/v1/models", self.metrics_path)
        return (*posts, *(("GET", path) for path in gets))

    def door(self, spec: LaunchSpec) -> dict[str, object]:
        """The door's settings."""
        inside: dict[str, object] = {"socket": socket_of(spec)} if self.by_socket else {"socket": None}
        return {
            "host": spec.host,
            "port": spec.port,
            "secret_file": spec.secret_file,
            "health": self.health_path,
            "allowed": self.allowed(),
            **inside,
        }

    def gated(self, spec: LaunchSpec, argv: list[str]) -> list[str]:
        """The command line of the door with the engine behind it."""
        door = Path(__file__).parent.parent / "servers" / self.server
        settings = msgspec.json.encode(self.door(spec)).decode()
        return [sys.executable, "-I", "-B", str(door), settings, "--", *argv]

    def found(self) -> str:
        """The engine's program. Raises Failure."""
        wish = read(self.setting)
        path = wish or shutil.which(self.program)
        if path and Path(path).is_absolute() and os.access(path, os.X_OK):
            return path
        if wish:
            raise Failure(
                "engine_missing", f"{self.setting.name} names {wish}, which is not a program at an absolute path."
            )
        raise Failure(
            "engine_missing", f"There is no {self.program} on the PATH. Install it, or name it in {self.setting.name}."
        )

    def base_environment(self, spec: LaunchSpec) -> dict[str, str]:
        """A home of its own below the replica's folder, and what an image says of its devices."""
        work = str(work_folder(spec))
        passed = {name: os.environ[name] for name in (*DEVICES, *_LIBRARIES) if name in os.environ}
        path = f"{Path(self.found()).parent}:{_SYSTEM_PATH}"
        return {"PATH": path, "LANG": "C.UTF-8", "HOME": work, "TMPDIR": work, "XDG_CACHE_HOME": work, **passed}

    def limits(self, spec: LaunchSpec) -> Limits:
        """It writes compiled kernels and shares memory by files; its address space is mostly its devices'."""
        return Limits(data_bytes=None, file_bytes=_FILE_BYTES, open_files=65536)

    def first_token(self, spec: LaunchSpec, model: str | None = None) -> Call:
        name = model or spec.model_alias
        if spec.pooling is not None:
            return Call("POST", "/v1/embeddings", msgspec.json.encode({"model": name, "input": "1"}))
        body = {"model": name, "prompt": "1", "max_tokens": 1, "temperature": 0}
        return Call("POST", "/v1/completions", msgspec.json.encode(body))


def socket_folder(spec: LaunchSpec) -> str:
    """Where sockets are: the work folder, or, where that is too deep for the kernel, a private folder beside the system's."""
    work = str(work_folder(spec))
    if len(work) <= _FOLDER_BYTES:
        return work
    return f"/tmp/berth-{hashlib.sha256(spec.state_dir.encode()).hexdigest()[:24]}"  # noqa: S108 - the door makes it, for us alone


def socket_of(spec: LaunchSpec) -> str:
    """The Unix socket between the door and the engine."""
    return f"{socket_folder(spec)}/s"
