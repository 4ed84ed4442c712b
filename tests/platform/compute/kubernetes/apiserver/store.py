"""The objects of a cluster with one resource version for all, their history for watches, and garbage collection."""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.platform.compute.kubernetes.apiserver import ownership
from tests.platform.compute.kubernetes.apiserver.failure import Failure, conflict, not_found

Json = dict[str, Any]
Key = tuple[str, str, str]  # plural, namespace, name


@dataclass
class Entry:
    body: Json
    owners: dict[str, set[ownership.Path]] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    version: int
    plural: str
    before: Json | None
    after: Json | None


def timestamp(at: float | None = None) -> str:
    return datetime.fromtimestamp(time.time() if at is None else at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Store:
    """Everything under one lock. What it gives out are copies."""

    def __init__(self) -> None:
        self.lock = threading.Condition(threading.RLock())
        self._objects: dict[Key, Entry] = {}
        self._history: list[Change] = []
        self._version = 1000
        self._forgotten = 1000  # versions up to here cannot be watched from any more

    @property
    def version(self) -> int:
        return self._version

    def read(self, plural: str, namespace: str, name: str) -> Json:
        with self.lock:
            return copy.deepcopy(self._entry(plural, namespace, name).body)

    def find(self, plural: str, namespace: str, name: str) -> Json | None:
        with self.lock:
            entry = self._objects.get((plural, namespace, name))
            return copy.deepcopy(entry.body) if entry else None

    def all(self, plural: str, namespace: str | None = None) -> list[Json]:
        with self.lock:
            return [
                copy.deepcopy(entry.body)
                for (kind, place, _), entry in sorted(self._objects.items())
                if kind == plural and namespace in (None, place)
            ]

    def create(self, plural: str, body: Json, manager: str, finish: Callable[[Json | None, Json], None]) -> Json:
        with self.lock:
            key = self._key(plural, body)
            if key in self._objects:
                raise Failure(409, "AlreadyExists", f'{plural} "{key[2]}" already exists')
            entry = Entry({})
            body = copy.deepcopy(body)
            finish(None, body)
            ownership.changed(None, body, manager, entry.owners)
            return self._put(key, entry, body)

    def change(
        self,
        plural: str,
        namespace: str,
        name: str,
        how: Callable[[Json], Json | None],
        manager: str,
        finish: Callable[[Json | None, Json], None] = lambda before, after: None,
    ) -> Json:
        """`how` changes the copy that it is given, or returns another."""
        with self.lock:
            entry = self._entry(plural, namespace, name)
            after = copy.deepcopy(entry.body)
            after = copy.deepcopy(how(after) or after)
            given = after["metadata"]
            if given.get("uid", entry.body["metadata"]["uid"]) != entry.body["metadata"]["uid"]:
                raise conflict(plural, name, "Precondition failed: UID in precondition is another")
            if (
                given.get("resourceVersion", entry.body["metadata"]["resourceVersion"])
                != entry.body["metadata"]["resourceVersion"]
            ):
                raise conflict(
                    plural, name, "the object has been modified; please apply your changes to the latest version"
                )
            finish(entry.body, after)
            ownership.changed(entry.body, after, manager, entry.owners)
            return self._put((plural, namespace, name), entry, after)

    def apply(
        self, plural: str, body: Json, manager: str, *, force: bool, finish: Callable[[Json | None, Json], None]
    ) -> tuple[Json, bool]:
        """The object, and whether it is new."""
        with self.lock:
            key = self._key(plural, body)
            known = self._objects.get(key)
            owners = copy.deepcopy(known.owners) if known else {}
            after = ownership.apply(known.body if known else None, body, manager, owners, force=force)
            finish(known.body if known else None, after)
            return self._put(key, Entry(known.body if known else {}, owners), after), known is None

    def remove(self, plural: str, namespace: str, name: str) -> Json:
        """At once, and then what it owned."""
        with self.lock:
            entry = self._entry(plural, namespace, name)
            if entry.body["metadata"].get("finalizers"):
                entry.body["metadata"].setdefault("deletionTimestamp", timestamp())
                return self._put((plural, namespace, name), entry, entry.body)
            del self._objects[(plural, namespace, name)]
            last = copy.deepcopy(entry.body)
            last["metadata"]["resourceVersion"] = str(self._next())
            self._history.append(Change(self._version, plural, entry.body, None))
            self.lock.notify_all()
            return last

    def orphans(self) -> list[Key]:
        """Objects all of whose owners are gone."""
        with self.lock:
            living = {entry.body["metadata"]["uid"] for entry in self._objects.values()}
            return [
                key
                for key, entry in self._objects.items()
                if (owners := entry.body["metadata"].get("ownerReferences"))
                and not any(owner["uid"] in living for owner in owners)
            ]

    def changes(self, plural: str, since: int) -> Iterator[Change]:
        """Raises Failure 410 for a version that is forgotten."""
        with self.lock:
            if since < self._forgotten:
                raise Failure(410, "Expired", f"too old resource version: {since} ({self._forgotten})")
            return iter([change for change in self._history if change.version > since and change.plural == plural])

    def forget_history(self) -> None:
        """As etcd's compaction does every five minutes."""
        with self.lock:
            self._forgotten = self._version
            self._history.clear()

    def _entry(self, plural: str, namespace: str, name: str) -> Entry:
        entry = self._objects.get((plural, namespace, name))
        if entry is None:
            raise not_found(plural, name)
        return entry

    @staticmethod
    def _key(plural: str, body: Json) -> Key:
        return plural, body["metadata"].get("namespace", ""), body["metadata"]["name"]

    def _next(self) -> int:
        self._version += 1
        return self._version

    def _put(self, key: Key, entry: Entry, after: Json) -> Json:
        before = entry.body or None
        metadata = after["metadata"]
        metadata.setdefault("uid", before["metadata"]["uid"] if before else str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", before["metadata"]["creationTimestamp"] if before else timestamp())
        metadata["managedFields"] = ownership.managed_fields(entry.owners, after["apiVersion"])
        if before and _without_version(before) == _without_version(after):
            entry.body["metadata"]["managedFields"] = metadata["managedFields"]
            self._objects[key] = Entry(entry.body, entry.owners)
            return copy.deepcopy(entry.body)
        metadata["resourceVersion"] = str(self._next())
        self._objects[key] = Entry(copy.deepcopy(after), entry.owners)
        self._history.append(Change(self._version, key[0], before, copy.deepcopy(after)))
        self.lock.notify_all()
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and key[0] != "pods":
            self.remove(*key)
        return copy.deepcopy(after)


def _without_version(body: Json) -> Json:
    metadata = {k: v for k, v in body["metadata"].items() if k not in ("resourceVersion", "managedFields")}
    return {**body, "metadata": metadata}
