"""The management API from a terminal, as far as uploads need it. A program of its own: no Django, and no settings are read."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

TRIES: Final = 6
OVER: Final = {"done", "failed", "cancelled"}


class ClientError(Exception):
    """A sentence for whoever typed the command. `again`: sending the same once more may help."""

    def __init__(self, message: str, *, again: bool = False) -> None:
        super().__init__(message)
        self.again = again


@dataclass(frozen=True)
class Part:
    path: Path
    name: str
    number: int
    begin: int
    size: int


class Session:
    """A signed-in session. Each thread has a connection of its own."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ClientError("The address of Berth looks like https://berth.example.org.")
        self.secure, self.host, self.port = parts.scheme == "https", parts.hostname, parts.port
        self.cookies: dict[str, str] = {}
        self.token = ""
        self._local = threading.local()

    def sign_in(self, email: str, password: str) -> None:
        self._take_token()
        self.send("POST", "/auth/browser/v1/auth/login", {"email": email, "password": password})
        self._take_token()

    def _take_token(self) -> None:
        self.send("GET", "/csrf")
        self.token = next((value for name, value in self.cookies.items() if name.endswith("berth_csrf")), "")

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """One request and its answer. What only reads is asked once more: a server closes connections that were idle for seconds."""
        for again in (method == "GET", False):
            try:
                connection = self._connection()
                connection.request(method, path, body, dict(headers))
                answer = connection.getresponse()
                return answer, answer.read()
            except (OSError, http.client.HTTPException):
                self._forget()
                if not again:
                    raise
        raise AssertionError("the second time it returns or raises")

    def send(self, method: str, path: str, content: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """The answer's JSON. Raises ClientError with the server's own sentence."""
        raw = content if isinstance(content, bytes) else None if content is None else json.dumps(content).encode()
        sent = {
            "Content-Type": "application/octet-stream" if isinstance(content, bytes) else "application/json",
            "Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items()),
            "X-CSRFToken": self.token,
            "Referer": f"{'https' if self.secure else 'http'}://{self.host}/",
            **(headers or {}),
        }
        try:
            answer, body = self._exchange(method, f"/api/v1{path}", raw, sent)
        except (OSError, http.client.HTTPException) as error:
            raise ClientError(f"Berth cannot be reached ({type(error).__name__}).", again=True) from None
        for cookie in answer.headers.get_all("Set-Cookie") or []:
            name, _, value = cookie.split(";", 1)[0].partition("=")
            self.cookies[name.strip()] = value.strip()
        if answer.status >= 400:
            raise ClientError(_sentence(body, answer.status), again=answer.status >= 500 or answer.status == 429)
        return json.loads(body) if body else None

    def _connection(self) -> http.client.HTTPConnection:
        held: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if held is None:
            if self.secure:
                held = http.client.HTTPSConnection(
                    self.host, self.port, timeout=120, context=ssl.create_default_context()
                )
            else:
                held = http.client.HTTPConnection(self.host, self.port, timeout=120)
            self._local.connection = held
        return held

    def _forget(self) -> None:
        self.close()

    def close(self) -> None:
        """Ends this thread's connection; those of other threads end with them."""
        held: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if held is not None:
            held.close()
        self._local.connection = None


def _sentence(body: bytes, status: int) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"Berth answered with status {status}. Is the address right, and the password?"


def upload(
    session: Session,
    org: str,
    name: str,
    files: Sequence[Path],
    *,
    licence: str = "",
    base: str = "",
    at_once: int = 4,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Sends the files and returns the import. One of the same name and files that was interrupted goes on. `told` hears bytes done
    and in all. Raises ClientError."""
    base_path = f"/orgs/{quote(org)}/imports"
    run = _unfinished(session, base_path, name, files) or _started(session, base_path, name, files, licence, base)
    parts = list(_missing(run, {path.name: path for path in files}))
    done, total = run["bytes_done"], run["bytes_total"]
    lock = threading.Lock()

    def send(part: Part) -> None:
        nonlocal done
        _send_part(session, f"{base_path}/{run['id']}", part)
        with lock:
            done += part.size
            told(done, total)

    told(done, total)
    with ThreadPoolExecutor(at_once) as pool:
        for each in [pool.submit(send, part) for part in parts]:
            each.result()
    answer: dict[str, Any] = session.send("GET", f"{base_path}/{run['id']}")
    return answer


def _started(session: Session, path: str, name: str, files: Sequence[Path], licence: str, base: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "source": "upload",
        "name": name,
        "upload": [{"name": each.name, "size": each.stat().st_size} for each in files],
    }
    body |= {key: value for key, value in (("licence", licence), ("base", base)) if value}
    answer: dict[str, Any] = session.send("POST", path, body)
    return answer


def _unfinished(session: Session, path: str, name: str, files: Sequence[Path]) -> dict[str, Any] | None:
    sizes = {each.name: each.stat().st_size for each in files}
    for run in session.send("GET", path)["items"]:
        if run["state"] == "receiving" and run["name"] == name:
            detail: dict[str, Any] = session.send("GET", f"{path}/{run['id']}")
            if {each["name"]: each["size"] for each in detail["files"]} == sizes:
                return detail
    return None


def _missing(run: Mapping[str, Any], files: Mapping[str, Path]) -> Iterator[Part]:
    sizes = {each["name"]: each["size"] for each in run["files"]}
    for each in run["missing"]:
        for number in each["parts"]:
            begin = number * run["part_bytes"]
            size = min(run["part_bytes"], sizes[each["name"]] - begin)
            yield Part(files[each["name"]], each["name"], number, begin, size)


def _send_part(session: Session, path: str, part: Part) -> None:
    with part.path.open("rb") as file:
        file.seek(part.begin)
        content = file.read(part.size)
    headers = {"X-Part-SHA256": hashlib.sha256(content).hexdigest()}
    for attempt in range(TRIES):
        try:
            session.send("PUT", f"{path}/files/{quote(part.name)}/parts/{part.number}", content, headers)
            return
        except ClientError as error:
            if not error.again or attempt == TRIES - 1:
                raise
            time.sleep(min(30.0, 0.5 * 2**attempt))


def watch(session: Session, org: str, import_id: str, *, pause: float = 1.0) -> dict[str, Any]:
    """The import once it is over."""
    if not re.fullmatch(r"[0-9a-f-]{36}", import_id):
        raise ClientError("This is no import's id.")
    while True:
        run: dict[str, Any] = session.send("GET", f"/orgs/{quote(org)}/imports/{import_id}")
        if run["state"] in OVER:
            return run
        time.sleep(pause)
