"""The real supervisor over light programs: run by path, it behaves like `python -m berth.host up` with these settings.

`python light.py crash` makes the gateway end at once, every time.
"""

from __future__ import annotations

import functools
import subprocess
import sys

import berth.host.__main__ as command
import berth.host.machine as machine
from berth.host.machine import Machine, answers
from berth.host.service import Service, program

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "2"); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *arguments): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
# Stands for a worker: it starts an engine that outlives it, as the local provider does.
WORKER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], start_new_session=True)
time.sleep(600)
"""
ENGINE = """
import fcntl, sys
with open(sys.argv[1]) as lifeline:
    fcntl.flock(lifeline, fcntl.LOCK_SH)
"""
FIRST = """
import json, pathlib, sys
print(json.dumps({"done": "3 changes applied"}), flush=True)
print(json.dumps({"migrated": True}), flush=True)
facts = {"dashboard_url": "", "api_base": "", "api_key": None, "model": None, "email": "o@localhost", "password": "pw"}
pathlib.Path(sys.argv[1]).write_text(json.dumps(facts))
"""


class LightMachine(Machine):
    crash = False

    def programs(self) -> list[Service]:
        def service(name: str, argv: list[str], port: int | None = None) -> Service:
            log = self.home.logs / f"{name}.log"
            ready = (lambda: True) if port is None else (lambda: answers(port))
            return Service(name, f"the {name}", program([sys.executable, *argv], log, self._base()), ready, log)

        gateway = ["-c", "raise SystemExit('no luck')"] if self.crash else ["-c", SERVER, str(self.gateway_port)]
        return [
            service("worker", ["-c", WORKER, ENGINE, str(self.home.lifeline)]),
            service("web", ["-c", SERVER, str(self.web_port)], self.web_port),
            service("gateway", gateway, self.gateway_port),
        ]

    def first_run(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", FIRST, str(self.home.demo_pending)], stdout=subprocess.PIPE, env=self._base()
        )


if __name__ == "__main__":
    # Nothing here pulls the plug of the machine, so nothing has to wait for the disk.
    machine.Postgres = functools.partial(machine.Postgres, durable=False)  # type: ignore[misc]
    LightMachine.crash = "crash" in sys.argv
    command.Machine = LightMachine  # type: ignore[misc]
    sys.exit(command.main(["up"]))
