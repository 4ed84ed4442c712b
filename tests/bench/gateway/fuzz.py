"""Random bytes at both doors of the gateway's core: `python tests/bench/gateway/fuzz.py --seconds 600`.

Good requests and good engine answers are damaged, cut and joined at random, and fed in random pieces. Whatever comes, nothing may be
raised or hang, an engine may get only what is well-formed and admitted, and each request it gets ends with exactly one usage event.
A finding is printed with its seed: `--seed N --cases 1` repeats it.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "platform"), str(ROOT / "runtime")]

from berth_gateway.client import Client  # noqa: E402
from berth_gateway.outgoing import State  # noqa: E402
from berth_gateway.records import OPEN  # noqa: E402
from tests.gateway.core import ENGINE_HEAD, Core, Dialled, Wire, unpacked  # noqa: E402
from tests.gateway.harness import World, chat, chat_events, chunked, completion_events, plain, raw_post  # noqa: E402

CASE_SECONDS = 5  # of its own CPU time: a busy machine is no hang
TOKENS = (
    b"\r\n", b"\n", b"\r", b"\0", b":", b" ", b"0\r\n\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 99999999999999999999\r\n", b"chunked", b"-1", b"+5", b"0x5", b"data: ", b"data: [DONE]\n\n", b"\n\n", b"event: x\n",
    b'"usage":{', b'"finish_reason":"stop"', b'"choices":[', b"]}", b"\xff\xfe", b"\xed\xa0\x80", b'\\ud800', b"[" * 300, b"{" * 300,
    b"1e999", b"9" * 400, b'"stream":true', b'"n":3', b'"model":"acme/model"', b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n",
)  # fmt: skip


def seeds(rng: random.Random, token: str) -> tuple[list[bytes], list[bytes]]:
    """Good requests, good answers."""
    words = [rng.choice(["a", "é", "\u2028", "日本", '"', "\\", "x" * 50]) for _ in range(rng.randint(1, 6))]
    stream = rng.random() < 0.6
    body = chat(stream=stream, **({"stream_options": {"include_usage": True}} if stream and rng.random() < 0.5 else {}))
    body["messages"][-1]["content"] = rng.choice(["hi", "a", "b c", "é", '"', "x" * 60])
    data = json.dumps(body).encode()
    requests = [
        *[raw_post("/v1/chat/completions", data, token)] * 4,
        raw_post("/v1/completions", json.dumps({"model": "acme/model", "prompt": "x", "stream": stream}).encode(), token),
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token.encode() + b"\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token.encode()
        + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(data[:7], data[7:]),
    ]  # fmt: skip
    answers = [
        ENGINE_HEAD + chunked(*chat_events(words)) if stream else plain(200, whole(len(words))),
        ENGINE_HEAD + chunked(*chat_events(words)),
        ENGINE_HEAD + chunked(*completion_events(words)),
        ENGINE_HEAD + chunked(b"".join(chat_events(words))),
        plain(200, whole(len(words))),
        plain(rng.choice([200, 400, 404, 429, 500, 503]), b'{"error":{"message":"no","code":400}}'),
    ]
    return requests, answers


def whole(tokens: int) -> bytes:
    """An answer in one piece."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "x" * tokens}, "finish_reason": "stop"}
    figures = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    answer = {"id": "e", "created": 1, "choices": [choice], "usage": figures}
    return json.dumps(answer, separators=(",", ":")).encode()


def damage(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([0, 0, 1, 1, 2, 5])):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            out[at:at] = rng.choice(TOKENS)
        elif kind == 1:
            del out[at : at + rng.randint(1, 20)]
        elif kind == 2 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 3:
            out[at:at] = out[at : at + rng.randint(1, 40)]
        else:
            del out[at:]
    return bytes(out)


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice([0, 1, 3, 10])))
    return [part for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if (part := data[a:b])]


def one_case(core: FuzzCore, rng: random.Random) -> None:
    requests, answers = seeds(rng, core.world.token)
    clients = [
        core.kept.pop() if core.kept and rng.random() < 0.7 else core.client() for _ in range(rng.choice([1, 2, 4]))
    ]
    accepted, settled = len(core.accepted), len(core.events)
    turns = rng.choice([1.0, 0.3, 0.0])  # how often the event loop waits between two pieces
    calm = rng.random() < 0.4  # nearly everything is as it should be, so that what is usual stays so

    def parts(kinds: list[bytes]) -> list[bytes]:
        if calm and rng.random() < 0.9:
            return [kinds[0]]
        return pieces(rng, damage(rng, rng.choice(kinds)))

    for _ in range(rng.randint(1, 3)):
        for client, wire in clients:
            for part in parts(requests):
                if wire.open:
                    client.received(part)
                core.turn(rng.random() < turns)
        core.turn(rng.random() < 0.9)
        for made in core.asked_now():
            for part in parts(answers):
                if made.wire.open:
                    made.upstream.received(part)
                core.turn(rng.random() < turns)
            if rng.random() < (0.02 if calm else 0.2):
                made.wire.closed = True
                made.upstream.lost()
        core.turn(rng.random() < 0.9)
        core.pass_time(0.0 if calm else rng.choice([0.0, 0.1, 3.0, 20.0]))
    part_from(core, rng, clients)
    check(core, accepted, settled)
    core.dialled = [made for made in core.dialled if made.wire.open]  # some of them idle, for the next case


def part_from(core: FuzzCore, rng: random.Random, clients: list[tuple[Client, Wire]]) -> None:
    """Clients leave; some that are between two requests are kept for a later case."""
    stay = [each for each in clients if each[1].open and rng.random() < 0.6]
    for each in clients:
        if each not in stay:
            each[0].lost()
        core.turn(rng.random() < 0.5)
    core.turn(True)
    core.pass_time(rng.choice([0.0, 10.0]))
    core.turn(True)
    for each in stay:
        client, wire = each
        if wire.open and client._exchange is None and not client._buffer and client._state is State.HEAD:
            wire.out = b""
            core.kept.append(each)
        else:
            client.lost()
            core.turn(True)


def check(core: FuzzCore, accepted: int, settled: int) -> None:
    """What holds after any case. The numbers say where it began."""
    for made in core.dialled:
        for seen in made.requests:  # read strictly: half a request, or one that is not ours, fails here
            sent = seen.json
            if sent["model"] != "engine-name" or not seen.head.startswith(b"POST /v1/"):
                raise AssertionError("an engine got what was not written for it")
        made.wire.out = b""
    if sorted(core.accepted[accepted:]) != sorted(event.event_id for event in core.events[settled:]):
        raise AssertionError("accepted requests and usage events differ")
    if core.gateway.exchanges:
        raise AssertionError("a request has no end")


class FuzzCore(Core):
    """Remembers what was accepted."""

    def __init__(self, folder: Path, engine: str) -> None:
        world = World()
        world.route("acme/model", 7001, engine=engine)
        super().__init__(folder, world)
        self.accepted: list[str] = []
        write = self.gateway.spool.write

        def watch_opened(records: bytes, settled: int = 0) -> None:
            write(records, settled)
            self.accepted += [event.event_id for kind, event in unpacked(records) if kind == OPEN]

        self.gateway.spool.write = watch_opened  # type: ignore[method-assign]

        self.kept: list[tuple[Client, Wire]] = []
        self.due: list[Callable[[], None]] = []
        self.gateway.fast.soon = self.due.append

    def turn(self, now: bool) -> None:
        """The event loop waits, and does before that what is due."""
        while now and self.due:
            self.due.pop(0)()

    def asked_now(self) -> list[Dialled]:
        """Connections on which the engine owes an answer."""
        return [m for m in self.dialled if m.upstream.fast is not None or m.upstream._asker is not None]


def too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("the case hangs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--cases", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    signal.signal(signal.SIGVTALRM, too_long)
    until, done, events = time.monotonic() + wanted.seconds, 0, 0
    while done < wanted.cases and time.monotonic() < until:
        with tempfile.TemporaryDirectory() as folder:
            core = FuzzCore(Path(folder), ("llamacpp", "vllm")[(wanted.seed + done) // 500 % 2])
            for _ in range(500):
                if done >= wanted.cases or time.monotonic() >= until:
                    break
                seed = wanted.seed + done
                signal.setitimer(signal.ITIMER_VIRTUAL, CASE_SECONDS)
                try:
                    one_case(core, random.Random(seed))
                except Exception:
                    print(f"seed {seed} fails (engine {core.world.routes[0].engine})", file=sys.stderr)
                    raise
                finally:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                done += 1
            events += len(core.events)
            core.close()
    print(f"{done} cases, {events} requests reached an engine; nothing was raised, nothing hung")
    return 0


if __name__ == "__main__":
    sys.exit(main())
