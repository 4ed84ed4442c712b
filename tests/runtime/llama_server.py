"""A program that takes llama-server's whole command line, for tests of that way in. The server behind it is the real one."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.runtime.agents import RUNTIME

FLAGS = (
    "--metrics --no-slots --api-key-file --jinja --offline --cache-ram --threads-http --no-ui --no-cache-idle-slots "
    "--ctx-checkpoints --fit --no-context-shift --cors-origins --no-cors-credentials --log-colors"
)

_SCRIPT = """#!{python} -I
import os, sys
if "--help" in sys.argv:
    print({flags!r})
elif "--version" in sys.argv:
    print("version: 7777 (abcdef0)")
else:
    {action}
"""

# Keeps the options that the bundled server has; the switches around them are fixed there.
_SERVE = """given = sys.argv[1:]
    end = given.index("--metrics")
    server = {server!r}
    os.execv(sys.executable, [sys.executable, "-I", "-B", server, *given[:end]])"""


def make(path: Path, action: str | None = None, flags: str = FLAGS) -> Path:
    """Writes the program. `action` is Python that runs instead of the server."""
    server = str(RUNTIME / "berth_runtime" / "servers" / "llamacpp.py")
    path.write_text(_SCRIPT.format(python=sys.executable, flags=flags, action=action or _SERVE.format(server=server)))
    path.chmod(0o755)
    return path


def make_talkative(path: Path) -> Path:
    """One that opens a port of its own beside the server's."""
    beside = "import socket, subprocess; held = socket.create_server(('127.0.0.1', 0)); subprocess.run("
    action = _SERVE.replace("os.execv(sys.executable, ", beside)
    return make(path, action.format(server=str(RUNTIME / "berth_runtime" / "servers" / "llamacpp.py")))
