"""What the Python scripts here share. Each is one client: it runs its checks and prints what it found as one JSON object."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

BASE = os.environ["BERTH_URL"]  # without /v1
KEY = os.environ["BERTH_KEY"]
BAD_KEY = "bth_sk_" + "z" * 43
MODEL, EMBEDDER, UNKNOWN = "acme/model", "acme/embedder", "acme/unknown"
PROMPT = "Say hello."
LONG_PROMPT = "word " * 3000  # beyond the model's context
ENDLESS = "Count from one to five hundred, one number a line: 1, 2, 3, 4,"

_checks: dict[str, str] = {}
_usage: list[list[int]] = []


def used(prompt: int, completion: int) -> None:
    """The usage that the client was told of one answered request."""
    assert prompt >= 0
    _usage.append([prompt, completion])


def check(run: Callable[[], Any]) -> None:
    """Runs it at once; what it raises is its result."""
    try:
        run()
        _checks[run.__name__] = "ok"
    except Exception:
        _checks[run.__name__] = traceback.format_exc()[-2000:]


async def check_async(run: Callable[[], Awaitable[Any]]) -> None:
    try:
        await run()
        _checks[run.__name__] = "ok"
    except Exception:
        _checks[run.__name__] = traceback.format_exc()[-2000:]


def raises(kind: type[Exception] | tuple[type[Exception], ...], run: Callable[[], Any]) -> Any:
    """The exception that it raises, or an AssertionError."""
    try:
        run()
    except kind as caught:
        return caught
    raise AssertionError(f"no {kind}")


def report(*packages: str) -> None:
    versions = {name: version(name) for name in packages}
    print(json.dumps({"versions": versions, "checks": _checks, "usage": _usage}))
