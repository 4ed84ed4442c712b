"""What replicas said of themselves, read from their pods' logs: side by side, and no more often than it is worth."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from berth.compute.launch import Phase, ReplicaStatus
from berth.compute.provider import ProviderError
from berth.compute.providers.kubernetes import names, reasons
from berth.compute.providers.kubernetes.client import ApiClient
from berth.compute.providers.kubernetes.journal import last_status
from berth.compute.providers.kubernetes.reasons import CONTAINER

Json = dict[str, Any]

_READY_SECONDS: Final = 5.0  # between two readings of a replica that is ready
_SIDE_BY_SIDE: Final = 8
_TAIL_LINES: Final = 40
_TAIL_BYTES: Final = 256 << 10


class Hearing:
    """A memory that may be lost at any time: it only saves questions. Safe to use from several threads."""

    def __init__(self, client: ApiClient, namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._lock = threading.Lock()
        self._heard: dict[str, tuple[float, bool, ReplicaStatus | None]] = {}  # by uid: when, after its end, what

    def of(self, pods: Sequence[Json]) -> dict[str, ReplicaStatus | None]:
        """The latest status of each pod, by uid."""
        with self._lock:
            known = {pod["metadata"]["uid"] for pod in pods} & self._heard.keys()
            ask = [pod for pod in pods if pod["metadata"]["uid"] not in known or self._is_due(pod)]
        if len(ask) == 1:
            self._hear(ask[0])
        elif ask:
            with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
                list(pool.map(self._hear, ask))
        with self._lock:
            return {uid: self._heard[uid][2] for pod in pods if (uid := pod["metadata"]["uid"]) in self._heard}

    def keep_only(self, uids: set[str]) -> None:
        """Forgets pods that are no more."""
        with self._lock:
            for uid in self._heard.keys() - uids:
                del self._heard[uid]

    def _is_due(self, pod: Json) -> bool:
        heard_at, after_end, status = self._heard[pod["metadata"]["uid"]]
        if after_end or not _has_spoken(pod):
            return False
        if _is_over(pod) or status is None or status.phase is not Phase.READY:
            return True
        return self._clock() - heard_at >= _READY_SECONDS

    def _hear(self, pod: Json) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        with self._lock:
            before = self._heard.get(uid, (0.0, False, None))[2]
        status = before
        if _has_spoken(pod):
            try:
                log = self._client.log(self._namespace, name, CONTAINER, tail=_TAIL_LINES, most=_TAIL_BYTES)
                replica = (pod["metadata"].get("annotations") or {}).get(names.REPLICA, "")
                status = last_status(log or b"", replica) or before
            except ProviderError:
                return  # its node may be away: what the kubelet last said has to do
        with self._lock:
            self._heard[uid] = (self._clock(), _is_over(pod), status)


def _is_over(pod: Json) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _has_spoken(pod: Json) -> bool:
    states = [each.get("state", {}) for each in reasons.container_statuses(pod)]
    return any("running" in state or "terminated" in state for state in states)
