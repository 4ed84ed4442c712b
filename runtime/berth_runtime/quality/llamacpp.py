"""What a GGUF file predicts, asked of llama.cpp itself: the engine that will serve it, and not a model of it."""

from __future__ import annotations

import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from berth_runtime.cage import caged
from berth_runtime.engines.catalogue import engine_named
from berth_runtime.engines.engine import Call
from berth_runtime.failure import Failure
from berth_runtime.probe import Probe
from berth_runtime.quality.measure import Prediction
from berth_runtime.spec import LAUNCH_FORMAT, LaunchSpec, ModelFile

_WINDOW: Final = 256  # tokens read in one go; the next window begins afresh
_NAMED: Final = 1000  # tokens named at each place: more than 99.9 % of the probability
_START_SECONDS: Final = 600.0
_ASK_SECONDS: Final = 120.0


def predictions(
    files: tuple[ModelFile, ...],
    text: str,
    *,
    threads: int,
    places: int,
    said: Callable[[int, int], None],
    memory_limit: int | None = None,
) -> list[Prediction]:
    """What the model predicts at the first `places` places of the text. `said` hears (done, all).

    Raises Failure if the engine cannot load the file or does not answer.
    """
    with _serving(files, threads, memory_limit) as ask:
        tokens = ask("/tokenize", {"content": text})["tokens"]
        vocabulary = len(tokens) and int(ask("/v1/models", None)["data"][0]["meta"]["n_vocab"])
        wanted = min(places, len(tokens) - -(-len(tokens) // _WINDOW))
        found: list[Prediction] = []
        for start in range(0, len(tokens), _WINDOW):
            window = tokens[start : start + _WINDOW]
            for end in range(1, len(window)):
                if len(found) >= wanted:
                    return found
                found.append(_prediction(ask, window, end, vocabulary))
                said(len(found), wanted)
        return found


def _prediction(ask: Callable[[str, Any], Any], window: list[int], end: int, vocabulary: int) -> Prediction:
    body = {
        "prompt": window[:end],
        "n_predict": 1,
        "n_probs": min(_NAMED, vocabulary),
        "temperature": 0,
        "cache_prompt": True,  # each place adds one token to what is in memory already
    }
    likely = ask("/completion", body)["completion_probabilities"][0]["top_logprobs"]
    # Minus infinity is no JSON number: what the engine cannot say has no probability worth counting.
    named = {each["id"]: float(each["logprob"]) for each in likely if each["logprob"] is not None}
    return Prediction(window[end], named, vocabulary)


@contextmanager
def _serving(
    files: tuple[ModelFile, ...], threads: int, memory_limit: int | None
) -> Iterator[Callable[[str, Any], Any]]:
    """The engine over these files, in its cage; what it prints is thrown away."""
    llamacpp = engine_named("llamacpp")
    if llamacpp is None:
        raise Failure("engine_missing", "This runtime has no llama.cpp, which measures GGUF files.")
    with tempfile.TemporaryDirectory(prefix="berth-quality-") as folder:
        secret = Path(folder) / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_urlsafe(24) + "\n")
        spec = msgspec.structs.replace(
            _spec(files, folder, str(secret), threads), port=_free_port(), memory_limit=memory_limit
        )
        process = subprocess.Popen(
            caged(llamacpp.command(spec), llamacpp.limits(spec)),
            env=llamacpp.environment(spec),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            probe = Probe(spec, spec.port)
            _wait(probe, llamacpp.health_path, process)
            yield lambda path, body: _ask(probe, path, body, process)
        finally:
            process.kill()
            process.wait()


def _spec(files: tuple[ModelFile, ...], folder: str, secret: str, threads: int) -> LaunchSpec:
    return LaunchSpec(
        format=LAUNCH_FORMAT,
        replica="quality",
        org_id="",
        deployment_id="",
        revision=0,
        engine="llamacpp",
        files=files,
        model_alias="measured",
        context_length=_WINDOW * 2,
        slots=1,
        threads=threads,
        secret_file=secret,
        state_dir=folder,
    )


def _wait(probe: Probe, path: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Failure("not_loadable", "The engine cannot load the file that was made.")
        try:
            if probe.ask(Call("GET", path), 1)[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise Failure("not_loadable", f"The engine did not load the file within {_START_SECONDS:.0f} seconds.")


def _ask(probe: Probe, path: str, body: Any, process: subprocess.Popen[bytes]) -> Any:
    call = Call("GET", path) if body is None else Call("POST", path, msgspec.json.encode(body))
    try:
        status, answer = probe.ask(call, _ASK_SECONDS)
    except OSError:
        died = process.poll() is not None
        raise Failure(
            "not_measurable", f"The engine {'ended' if died else 'did not answer'} while its quality was measured."
        ) from None
    if status != 200:
        raise Failure("not_measurable", f"The engine refused a question about its predictions (status {status}).")
    return msgspec.json.decode(answer)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
