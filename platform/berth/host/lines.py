"""What a helper program tells its starter: a JSON object a line, through a pipe."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any


class Lines:
    """JSON objects from a pipe that never blocks."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._rest = b""

    def read(self) -> list[dict[str, Any]] | None:
        """What has arrived since, or None at the end. Lines that are no JSON object are skipped."""
        try:
            part = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return []
        if not part:
            return None
        *lines, self._rest = (self._rest + part).split(b"\n")
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError):
                messages.append(json.loads(line))
        return [message for message in messages if isinstance(message, dict)]
