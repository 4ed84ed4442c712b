"""A copy of some objects of a cluster, kept up to date by a watch. Reading it costs the API server nothing.

It holds nothing that could not be read again: it begins with a list, follows with a watch from the list's resource
version, goes on from the last bookmark after a broken connection, and lists again when the server has forgotten that
version (410) or after RESYNC_SECONDS in any case. What this process writes itself it sees at once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from berth.compute.provider import ProviderUnavailable
from berth.compute.providers.kubernetes.client import ApiClient
from berth.compute.providers.kubernetes.errors import Refusal
from berth.compute.providers.kubernetes.kinds import Kind

log = logging.getLogger(__name__)

RESYNC_SECONDS: Final = 1800.0
_WATCH_SECONDS: Final = 300
_SILENCE_SECONDS: Final = 90.0  # bookmarks come about once a minute
_FIRST_SECONDS: Final = 15.0  # for the first list
_STALE_SECONDS: Final = 30.0  # without a connection, until what is known is too old to act on
_DEPARTED: Final = 1000  # objects whose last state is kept
_PAUSES: Final = (0.2, 1.0, 2.0, 5.0)

Json = dict[str, Any]


class Mirror:
    """Objects of one kind, by name. Starts at the first look, in each process of its own. Safe to use from several threads."""

    def __init__(
        self,
        client: ApiClient,
        kind: Kind,
        namespace: str | None,
        labels: str = "",
        *,
        slim: Callable[[Json], Json] = lambda each: each,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`slim` keeps of each object what is needed of it."""
        self._client = client
        self._kind = kind
        self._namespace = namespace
        self._labels = labels
        self._slim = slim
        self._clock = clock
        self._lock = threading.Condition()
        self._objects: dict[tuple[str, str], Json] = {}
        self._gone: set[str] = set()  # uids that were deleted, so that no late word brings them back
        self._departed: dict[tuple[str, str], Json] = {}
        self._synced = False
        self._in_touch_at = clock()
        self._problem = ""
        self._owner = 0
        self._ended = threading.Event()
        self._listed = 0  # how often everything was read
        self._listed_at = clock()
        self._resume = ""  # the last version that is known to be whole

    def all(self) -> list[Json]:
        """Every object. Raises ProviderUnavailable if nothing, or nothing of late, is known."""
        self._require()
        with self._lock:
            return list(self._objects.values())

    def known(self) -> list[Json] | None:
        """Every object as last known, however long ago; None: never known."""
        with self._lock:
            return list(self._objects.values()) if self._synced else None

    def get(self, name: str) -> Json | None:
        """The object of this name. Raises ProviderUnavailable."""
        self._require()
        with self._lock:
            return self._objects.get((self._namespace or "", name))

    def departed(self, name: str) -> Json | None:
        """How an object of this name last was that somebody else removed, if this process saw it go and none has come since."""
        with self._lock:
            return self._departed.get((self._namespace or "", name))

    def put(self, written: Json) -> None:
        """Takes an object that this process has just written."""
        with self._lock:
            self._store(written)

    def drop(self, gone: Json) -> None:
        """Forgets an object that this process has just seen to be gone."""
        with self._lock:
            self._remove(gone)

    @property
    def times_listed(self) -> int:
        return self._listed

    def close(self) -> None:
        """Ends the watch. A later look would begin a new one."""
        self._ended.set()

    # How

    def _require(self) -> None:
        with self._lock:
            if self._owner != os.getpid():  # also after a fork, which takes no threads along
                self._begin()
            self._lock.wait_for(lambda: self._synced or bool(self._problem), timeout=_FIRST_SECONDS)
            if not self._synced:
                raise ProviderUnavailable(self._problem or f"The cluster's {self._kind.plural} cannot be read yet.")
            if self._problem and self._clock() - self._in_touch_at > _STALE_SECONDS:
                raise ProviderUnavailable(self._problem)

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._synced = False
        self._problem = ""
        self._ended = threading.Event()
        threading.Thread(target=self._run, args=(self._ended,), name=f"mirror-{self._kind.plural}", daemon=True).start()

    def _run(self, ended: threading.Event) -> None:
        failures = 0
        since = ""
        while not ended.is_set():
            try:
                if not since:
                    since = self._relist()
                since = self._follow(since, ended)
                failures = 0
            except Refusal as refused:
                since = ""  # also 410: it no longer knows the version
                failures = self._trouble(refused, failures) if not refused.gone else failures
            except ProviderUnavailable as away:
                failures = self._trouble(away, failures)
                since = self._resume
            if failures:
                ended.wait(_PAUSES[min(failures, len(_PAUSES)) - 1])

    def _relist(self) -> str:
        self._resume = ""
        objects, version = self._client.list(self._kind, self._namespace, labels=self._labels)
        with self._lock:
            self._objects = {_key(each): self._slim(each) for each in objects}
            self._gone.clear()
            self._synced = True
            self._listed += 1
            self._listed_at = self._clock()
            self._touched()
        self._resume = version
        return version

    def _follow(self, since: str, ended: threading.Event) -> str:
        """The version to go on from; empty: read everything again."""
        for event in self._client.watch(
            self._kind,
            self._namespace,
            since=since,
            labels=self._labels,
            seconds=_WATCH_SECONDS,
            silence=_SILENCE_SECONDS,
        ):
            if ended.is_set():
                break
            body = event["object"]
            with self._lock:
                if event["type"] == "DELETED":
                    self._note_departure(body)
                    self._remove(body)
                elif event["type"] in ("ADDED", "MODIFIED"):
                    self._store(body)
                self._touched()
            self._resume = since = str(body["metadata"]["resourceVersion"])
        with self._lock:
            self._touched()  # the server ended the watch as asked
        return since if self._clock() - self._listed_at < RESYNC_SECONDS else ""

    def _store(self, body: Json) -> None:
        key, uid = _key(body), body["metadata"]["uid"]
        known = self._objects.get(key)
        if uid in self._gone or (known and known["metadata"]["uid"] == uid and _version(known) >= _version(body)):
            return
        self._objects[key] = self._slim(body)
        self._departed.pop(key, None)
        self._lock.notify_all()

    def _note_departure(self, body: Json) -> None:
        if body["metadata"]["uid"] not in self._gone:
            self._departed[_key(body)] = self._slim(body)
            while len(self._departed) > _DEPARTED:
                del self._departed[next(iter(self._departed))]

    def _remove(self, body: Json) -> None:
        key, uid = _key(body), body["metadata"]["uid"]
        self._gone.add(uid)
        if self._objects.get(key, {}).get("metadata", {}).get("uid") == uid:
            del self._objects[key]
        self._lock.notify_all()

    def _touched(self) -> None:
        self._in_touch_at = self._clock()
        self._problem = ""
        self._lock.notify_all()

    def _trouble(self, error: Exception, failures: int) -> int:
        if failures == 0:
            log.warning(
                "cluster_watch_interrupted", extra={"kind": self._kind.plural, "error_type": type(error).__name__}
            )
        with self._lock:
            self._problem = f"The cluster's {self._kind.plural} cannot be read. {error}"
            self._lock.notify_all()
        return failures + 1


def _key(body: Json) -> tuple[str, str]:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _version(body: Json) -> int:
    """Comparable since Kubernetes 1.35 says so, and in every version before it with etcd."""
    text = str(body["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdigit() else 0
