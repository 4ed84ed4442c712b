"""kill -9 of a gateway at random moments under load: `python tests/bench/gateway/kills.py --kills 200`.

Clients keep their connections and call without pause, plainly and streaming, so that most requests come the short way. The gateway
runs alone and is killed and started again and again. At the end its spool is read: each request that the engine saw, and each that
was answered to the last byte, is exactly one settled event, and one that was answered has the tokens it was answered with.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "platform"), str(ROOT / "runtime")]

from berth.host.child import free_port  # noqa: E402
from berth_gateway.contract import UsageEvent  # noqa: E402
from berth_gateway.records import SETTLED, read_records  # noqa: E402
from tests.gateway.harness import HEAD, Engine, Seen, Talk, chat, chat_events, plain, raw_post  # noqa: E402

TOKEN = "bth_sk_" + "a" * 43
CLIENTS = 6


def script(seen: Seen, talk: Talk) -> None:
    """A token for each that is asked for, a little apart."""
    tokens = seen.json["max_tokens"]
    if not seen.json.get("stream"):
        time.sleep(0.002)
        choice = {"index": 0, "message": {"role": "assistant", "content": "w " * tokens}, "finish_reason": "stop"}
        figures = {"prompt_tokens": 11, "completion_tokens": tokens, "total_tokens": 11 + tokens}
        talk.send(plain(200, json.dumps({"id": "e", "choices": [choice], "usage": figures}).encode()))
        return
    talk.send(HEAD)
    for data in chat_events([f"w{n}" for n in range(tokens)]):
        talk.send(b"%x\r\n%b\r\n" % (len(data), data))
        time.sleep(0.001)
    talk.send(b"0\r\n\r\n")


def snapshot(engine: int) -> bytes:
    key = {"id": "key", "organization": "acme", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}
    model = {
        "name": "acme/model",
        "organization": "acme",
        "engine": "vllm",
        "engine_model": "m",
        "context_length": 2048,
        "replicas": [{"port": engine}],
    }
    return json.dumps({"organizations": [{"id": "acme"}], "keys": [key], "models": [model]}).encode()


class Client(threading.Thread):
    """One connection at a time, for as long as it lasts. `answered`: tokens by request id, of whole answers."""

    def __init__(self, port: int, number: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._port, self._chance, self._stop_ = port, random.Random(number), stop
        self.answered: dict[str, int] = {}

    def run(self) -> None:
        while not self._stop_.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=5) as sock:
                    while not self._stop_.is_set() and self._call(sock):
                        pass
            except OSError:
                time.sleep(0.01)

    def _call(self, sock: socket.socket) -> bool:
        stream, tokens = self._chance.random() < 0.5, self._chance.randint(1, 9)
        body = json.dumps(chat(stream=stream, max_tokens=tokens)).encode()
        sock.sendall(raw_post("/v1/chat/completions", body, TOKEN))
        got = b""
        while not self._whole(got):
            part = sock.recv(65536)
            if not part:
                return False
            got += part
        head = got.partition(b"\r\n\r\n")[0]
        if b" 200 " in head and b'"error"' not in got:
            (mine,) = [line[14:].decode() for line in head.split(b"\r\n") if line.startswith(b"x-request-id: ")]
            self.answered[mine] = tokens
        return True

    @staticmethod
    def _whole(got: bytes) -> bool:
        head, mark, body = got.partition(b"\r\n\r\n")
        if not mark:
            return False
        lengths = [int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: ")]
        return len(body) >= lengths[0] if lengths else body.endswith(b"0\r\n\r\n")


def start(work: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "berth_gateway", "--snapshot", str(work / "snapshot.json"), "--port", str(port)]
    with (work / "gateway.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--spool", str(work / "spool")],
            env={**os.environ, "PYTHONPATH": str(ROOT / "platform")},
            stderr=log,
        )
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        if process.poll() is not None:
            sys.exit(f"the gateway did not start:\n{(work / 'gateway.log').read_text()[-2000:]}")
        time.sleep(0.01)


def settled(folder: Path) -> list[UsageEvent]:
    files = sorted(folder.glob("*.spool"))
    return [event for file in files for kind, event in read_records(file, file.stat().st_size) if kind == SETTLED]


def judge(engine: Engine, clients: list[Client], events: list[UsageEvent], kills: int) -> None:
    counts = Counter("req_" + event.event_id.replace("-", "") for event in events)
    by_id = {"req_" + event.event_id.replace("-", ""): event for event in events}
    asked = {seen.header("x-request-id") for seen in engine.seen}
    answered = {mine: tokens for client in clients for mine, tokens in client.answered.items()}
    lost = [mine for mine in {*asked, *answered} if mine not in counts]
    doubled = [mine for mine, count in counts.items() if count > 1]
    wrong = [mine for mine, tokens in answered.items() if mine in by_id and by_id[mine].completion_tokens != tokens]
    print(
        f"{kills} kills, {len(asked)} requests reached the engine, {len(answered)} were answered whole, "
        f"{len(events)} events: {len(lost)} lost, {len(doubled)} doubled, {len(wrong)} wrong"
    )
    if lost or doubled or wrong:
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    chance = random.Random(wanted.seed)
    engine = Engine()
    engine.script = script
    port, stop = free_port(), threading.Event()
    with tempfile.TemporaryDirectory(prefix="berth-kills") as folder:
        work = Path(folder)
        (work / "snapshot.json").write_bytes(snapshot(engine.port))
        process = start(work, port)
        clients = [Client(port, number, stop) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for _ in range(wanted.kills):
            time.sleep(chance.uniform(0.05, 0.5))
            process.kill()
            process.wait()
            process = start(work, port)
        time.sleep(0.5)
        stop.set()
        for client in clients:
            client.join(10)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process = start(work, port)  # settles what was open
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        judge(engine, clients, settled(work / "spool"), wanted.kills)
    engine.stop()


if __name__ == "__main__":
    main()
