"""Talking to an API server: JSON over strict TLS, a kept connection per thread, typed errors. Nothing of replicas in here."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlencode

from berth.compute.provider import ProviderUnavailable
from berth.compute.providers.kubernetes.credentials import Credentials
from berth.compute.providers.kubernetes.errors import Refusal, refusal
from berth.compute.providers.kubernetes.kinds import Kind

FIELD_MANAGER: Final = "berth"
_SECONDS: Final = 15.0
_MOST_BYTES: Final = 64 << 20  # of one answer
_LONGEST_LINE: Final = 8 << 20  # of a watch
_PAGE: Final = 500
_TRIES: Final = 3
_LONGEST_PAUSE: Final = 2.0

Json = dict[str, Any]


class ApiClient:
    """One API server. Safe to use from several threads. Every method raises ProviderUnavailable and Refusal."""

    def __init__(self, credentials: Credentials, name: str) -> None:
        self._credentials = credentials
        self._name = name
        self._kept = threading.local()

    def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """The object; None if there is none."""
        try:
            return self._json("GET", kind.path(namespace, name))
        except Refusal as refused:
            if refused.not_found:
                return None
            raise

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "", fields: str = "") -> tuple[list[Json], str]:
        """All objects that match, in pages, and the resource version from which a watch goes on."""
        found: list[Json] = []
        query = {"limit": str(_PAGE), "labelSelector": labels, "fieldSelector": fields}
        while True:
            page = self._json("GET", kind.path(namespace), query)
            found += page.get("items") or []
            more = page["metadata"].get("continue")
            if not more:
                return found, str(page["metadata"].get("resourceVersion", ""))
            query = query | {"continue": more}

    def apply(self, kind: Kind, namespace: str, body: Json) -> Json:
        """Server-side apply: what we say of the object is so afterwards, what others say of the rest stays."""
        path = kind.path(namespace, body["metadata"]["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"}
        return self._json("PATCH", path, query, body, "application/apply-patch+yaml")

    def merge(self, kind: Kind, namespace: str, name: str, patch: Json) -> Json | None:
        """Changes single fields of an object that exists; None if there is none, or another than the patch's uid. The server itself
        tries again where others write too, but only a few times."""
        query = {"fieldManager": FIELD_MANAGER}
        for attempt in range(_TRIES):
            try:
                return self._json("PATCH", kind.path(namespace, name), query, patch, "application/merge-patch+json")
            except Refusal as refused:
                if refused.not_found or refused.not_the_same:
                    return None
                if not refused.conflict or attempt == _TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def delete(
        self, kind: Kind, namespace: str, name: str, *, grace: int | None = None, uid: str | None = None
    ) -> Json | None:
        """Asks for the object's end; what it owns follows. The object, while it is still ending; None once it is gone.

        Nothing happens if there is none, or another than `uid`.
        """
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            answer = self._json("DELETE", kind.path(namespace, name), body=options)
        except Refusal as refused:
            if refused.not_found or (uid is not None and refused.conflict):
                return None
            raise
        return answer if answer.get("kind") == kind.kind and "deletionTimestamp" in answer["metadata"] else None

    def log(
        self, namespace: str, pod: str, container: str, *, tail: int | None = None, most: int = 4 << 20
    ) -> bytes | None:
        """The end of what a container has written, at most `most` bytes; None if there is nothing to read (yet)."""
        query = {"container": container, "limitBytes": str(most)}
        if tail is not None:
            query["tailLines"] = str(tail)
        try:
            return self._ask("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log", query)
        except Refusal as refused:
            if refused.not_found or refused.code == 400:  # its container has not begun
                return None
            raise

    def watch(
        self, kind: Kind, namespace: str | None, *, since: str, labels: str = "", seconds: int, silence: float
    ) -> Iterator[Json]:
        """Events after a resource version, until the server ends the watch after `seconds`.

        `silence`: the longest wait for the next event. Raises Refusal 410 when the server no longer knows `since`.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "labelSelector": labels,
            "timeoutSeconds": str(seconds),
        }
        connection = self._connect(silence)
        try:
            answer = self._send(connection, "GET", kind.path(namespace), query, None, None)
            if answer.status != 200:
                raise refusal(answer.status, answer.read(_MOST_BYTES), self._name)
            while line := answer.readline(_LONGEST_LINE):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise refusal(
                        int(event["object"].get("code", 500)), json.dumps(event["object"]).encode(), self._name
                    )
                yield event
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            raise self._away(error) from None
        finally:
            connection.close()

    # How

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        kind: str | None = None,
    ) -> Json:
        answer = self._ask(method, path, query or {}, body, kind)
        try:
            told: Json = json.loads(answer)
        except ValueError as error:
            raise self._away(error) from None
        return told

    def _ask(
        self, method: str, path: str, query: Mapping[str, str], body: Json | None = None, kind: str | None = None
    ) -> bytes:
        """All that we ask may be asked again: a connection that has gone stale, or a busy server, gets another try."""
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            connection = self._connection()
            try:
                answer = self._send(connection, method, path, query, body, kind)
                data = answer.read(_MOST_BYTES)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                if last or isinstance(error, TimeoutError):
                    raise self._away(error) from None
                continue
            if answer.will_close:
                self._drop()
            if answer.status in (429, 503) and not last and _is_load(data):
                time.sleep(_pause(answer.getheader("Retry-After")))
                continue
            if 200 <= answer.status < 300:
                return data
            raise refusal(answer.status, data, self._name)
        raise AssertionError("unreachable")

    def _send(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None,
        kind: str | None,
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": "berth"}
        if authorization := self._credentials.authorization():
            headers["Authorization"] = authorization
        if body is not None:
            headers["Content-Type"] = kind or "application/json"
        given = {key: value for key, value in query.items() if value}
        target = self._credentials.url.path.rstrip("/") + path + (f"?{urlencode(given)}" if given else "")
        connection.request(method, target, json.dumps(body).encode() if body is not None else None, headers)
        return connection.getresponse()

    def _connection(self) -> http.client.HTTPSConnection:
        """This thread's own, made by this process: a connection must not be shared with a process forked since."""
        owner, kept = getattr(self._kept, "connection", None) or (0, None)
        if kept is None or owner != os.getpid():
            kept = self._connect(_SECONDS)
            self._kept.connection = (os.getpid(), kept)
        return kept

    def _connect(self, seconds: float) -> http.client.HTTPSConnection:
        url = self._credentials.url
        return http.client.HTTPSConnection(
            url.hostname or "", url.port or 443, timeout=seconds, context=self._credentials.context
        )

    def _drop(self) -> None:
        _, kept = getattr(self._kept, "connection", None) or (0, None)
        self._kept.connection = None
        if kept is not None:
            with suppress(OSError):
                kept.close()

    def _away(self, error: Exception) -> ProviderUnavailable:
        return ProviderUnavailable(f"The API server of cluster {self._name} does not answer ({type(error).__name__}).")


def _is_load(data: bytes) -> bool:
    """Whether 429 means "later". An eviction that a budget forbids says 429 too, and means "no"."""
    return b"DisruptionBudget" not in data


def _pause(retry_after: str | None) -> float:
    wanted = float(retry_after) if retry_after and retry_after.isdigit() else 1.0
    return min(wanted, _LONGEST_PAUSE)
