"""Asking the engine, over loopback, without ever showing its answers to anybody."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Final

from berth_runtime.engines.engine import Call
from berth_runtime.spec import LaunchSpec

_MAX_ANSWER: Final = 4 << 20


class Probe:
    """One engine's address and secret."""

    def __init__(self, spec: LaunchSpec, port: int) -> None:
        """Raises OSError if the secret cannot be read."""
        self._host = "127.0.0.1" if spec.host == "0.0.0.0" else "::1" if spec.host == "::" else spec.host  # noqa: S104
        self._port = port
        self._secret = Path(spec.secret_file).read_text().strip()

    def ask(self, call: Call, seconds: float) -> tuple[int, bytes]:
        """Status and body. Raises OSError when there is no answer in time. `seconds` bounds each wait."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        headers = {"Authorization": f"Bearer {self._secret}", "Connection": "close"}
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(call.method, call.path, body=call.body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_MAX_ANSWER)
        except http.client.HTTPException as error:
            raise OSError(f"no HTTP answer: {type(error).__name__}") from None
        finally:
            connection.close()
