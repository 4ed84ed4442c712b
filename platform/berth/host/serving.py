"""Whether a model really answers through the gateway, and what to print for people who want to call it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What one request met: the HTTP status (0: no connection) and, with an error, its code."""

    status: int
    code: str = ""
    message: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def may_change(self) -> bool:
        """Whether waiting can help: the model is loading, or the key has not reached the gateway yet."""
        return self.status in {0, 401, 404, 429} or self.status >= 500


def ask(port: int, key: str, model: str) -> Answer:
    """Asks the gateway on this machine for one token. A real request: it is metered like every other."""
    body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException):
        return Answer(0)
    finally:
        connection.close()
    if response.status == 200:
        return Answer(200)
    try:
        error = json.loads(content)["error"]
        return Answer(response.status, str(error.get("code") or ""), str(error.get("message") or ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Answer(response.status)


class Asking:
    """`ask` in the background, so that whoever waits can tell how long it takes and be interrupted."""

    def __init__(self, port: int, key: str, model: str) -> None:
        self._answer: Answer | None = None
        self._thread = threading.Thread(target=self._run, args=(port, key, model), daemon=True)
        self._thread.start()

    def _run(self, port: int, key: str, model: str) -> None:
        self._answer = Answer(0)
        self._answer = ask(port, key, model)

    def answer(self) -> Answer | None:
        """What the gateway said, or None while it has not."""
        return None if self._thread.is_alive() else self._answer


def snippets(facts: Mapping[str, Any]) -> str:
    """Commands that work as they are when pasted into a shell and into Python."""
    return f"""\
curl -N {facts["api_base"]}/chat/completions \\
  -H "Authorization: Bearer {facts["api_key"]}" -H "Content-Type: application/json" \\
  -d '{{"model": "{facts["model"]}", "stream": true, "messages": [{{"role": "user", "content": "What is a harbour?"}}]}}'

from openai import OpenAI

client = OpenAI(base_url="{facts["api_base"]}", api_key="{facts["api_key"]}")
for chunk in client.chat.completions.create(
    model="{facts["model"]}", messages=[{{"role": "user", "content": "What is a harbour?"}}], stream=True
):
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
"""


def welcome(facts: Mapping[str, Any], home: str, *, first: bool) -> str:
    """What `make up` ends with. The password and the key are shown by the first start alone."""
    lines = ["", "Berth is running.", "", f"  Dashboard   {facts['dashboard_url']}"]
    if first and facts.get("password"):
        lines += [
            f"  E-mail      {facts['email']}",
            f"  Password    {facts['password']}  (temporary: change it after signing in)",
        ]
    lines.append(f"  API base    {facts['api_base']}")
    if facts.get("model"):
        lines.append(f"  Model       {facts['model']}")
        if first:
            lines.append(f"  API key     {facts['api_key']}")
    lines.append("")
    if first and facts.get("api_key"):
        lines += ["Try it from a shell, or from Python with the openai package:", "", snippets(facts), ""]
    where = "The same facts are" if first else "The first password and key are"
    known = f"{where} in {home}/demo.json. " if "email" in facts else ""
    lines += [f"{known}Data and logs are in {home}. Ctrl-C stops everything.", ""]
    return "\n".join(lines)
