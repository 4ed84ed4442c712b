"""The real llama.cpp with the real small model, for tests that put a gateway in front of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from berth.host.child import free_port
from tests.gateway.harness import PATIENCE, ROOT, SECRET, get, wait_for
from tests.runtime.agents import model_file

SERVER = ROOT / "runtime" / "berth_runtime" / "servers" / "llamacpp.py"


class Llama:
    """llama.cpp's server with two slots of 1024 tokens. `more`: further arguments."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.folder = folder
        self.more = more
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        secret = self.folder / "secret"
        secret.write_text(SECRET)
        options = {
            "model": model_file().path, "host": "127.0.0.1", "alias": "engine-name", "api-key-file": secret, "port": self.port,
            "parallel": 2, "ctx-size": 2048, "threads": 1, "threads-batch": 1, "threads-http": 4,
        }  # fmt: skip
        argv = [
            sys.executable,
            "-I",
            str(SERVER),
            *(str(x) for k, v in options.items() for x in (f"--{k}", v)),
            *self.more,
        ]
        with (self.folder / "llama.log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.folder)
        wait_for(self._healthy, "llama.cpp", alive=self.process)

    def _healthy(self) -> bool:
        try:
            return get(self.port, "/health").status == 200
        except OSError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None

    def busy(self) -> int:
        """Requests it works on."""
        text = get(self.port, "/metrics", SECRET).body.decode()
        found = re.search(r"^llamacpp:requests_processing (\d+)", text, re.MULTILINE)
        return int(found[1]) if found else -1
