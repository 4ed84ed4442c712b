"""The door before Ollama: gives it the model's file and makes the model, before anybody is let in.

    python -I -B ollama.py SETTINGS -- program argument…

SETTINGS are the door's, and beside them `model`: {"name", "file", "sha256", "context"}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # isolated: the runtime is found by this file's place, not by the environment
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from berth_runtime.servers import gate, gatewire

_CHUNK = 1 << 20
_CREATE_SECONDS = 3600.0


def lay_blob(models: Path, file: str, sha256: str) -> None:
    """Puts the file where Ollama keeps its own, as a link, so that it need not be copied."""
    blobs = models / "blobs"
    blobs.mkdir(mode=0o700, parents=True, exist_ok=True)
    (blobs / f"sha256-{sha256}").symlink_to(file)


async def upload(engine: gate.Engine, file: str, sha256: str) -> int:
    """Gives Ollama the file over its API; the status."""
    stream = await asyncio.to_thread(Path(file).open, "rb")
    size = os.fstat(stream.fileno()).st_size
    reader, writer = await engine.connect()
    try:
        head = f"POST /api/blobs/sha256:{sha256} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
        writer.write(head.encode())
        while data := await asyncio.to_thread(stream.read, _CHUNK):
            writer.write(data)
            await writer.drain()
        return (await gatewire.response(reader))[0]
    finally:
        stream.close()
        writer.close()


async def create(engine: gate.Engine, model: dict[str, Any]) -> bool:
    """Makes the model of the file; whether Ollama says that it did."""
    body = {
        "model": model["name"],
        "files": {"model.gguf": f"sha256:{model['sha256']}"},
        "parameters": {"num_ctx": model["context"]},
        "stream": False,
    }
    status, answer = await engine.ask("POST", "/api/create", json.dumps(body).encode(), _CREATE_SECONDS)
    return status == 200 and b'"error"' not in answer


async def prepare(engine: gate.Engine, model: dict[str, Any], models: Path) -> bool:
    """Whether the model is there. Says in fixed words if it is not."""
    try:
        there, _ = await engine.ask("HEAD", f"/api/blobs/sha256:{model['sha256']}")
        made = there == 200 and await create(engine, model)
        if not made:  # it does not take the link: it gets a copy
            (models / "blobs" / f"sha256-{model['sha256']}").unlink(missing_ok=True)
            sent = await upload(engine, model["file"], model["sha256"])
            made = sent in (200, 201) and await create(engine, model)
    except (OSError, TimeoutError):
        made = False
    if not made:
        sys.stderr.write("model not created\n")
        sys.stderr.flush()
    return made


def main() -> int:
    """Exit status: Ollama's, or 1 if the model could not be made."""
    given = json.loads(sys.argv[1])
    model = given.pop("model")
    settings = gate.settings_of(json.dumps(given))
    models = Path(os.environ["OLLAMA_MODELS"])
    lay_blob(models, model["file"], model["sha256"])
    return asyncio.run(gate.run(settings, sys.argv[3:], lambda engine: prepare(engine, model, models)))


if __name__ == "__main__":
    sys.exit(main())
