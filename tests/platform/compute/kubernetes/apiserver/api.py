"""What the API server does for each request, without sockets: reading, writing, deleting, evicting, garbage collection."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.platform.compute.kubernetes.apiserver import admission
from tests.platform.compute.kubernetes.apiserver.failure import Failure, invalid
from tests.platform.compute.kubernetes.apiserver.resources import Resource, by_kind
from tests.platform.compute.kubernetes.apiserver.selectors import field_selector, label_selector
from tests.platform.compute.kubernetes.apiserver.store import Change, Store, timestamp

Json = dict[str, Any]


class Api:
    """`hooks` may refuse any write by raising Failure, as an admission webhook or a quota does."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.store = Store()
        self.hooks: list[Callable[[Json | None, Json], None]] = []
        self.logs: Callable[[Json, str, int | None, int | None], bytes] = lambda pod, container, tail, most: b""

    # Reading

    def list(self, r: Resource, namespace: str | None, query: dict[str, str]) -> Json:
        matches = self._matching(query)
        with self.store.lock:
            found = [body for body in self.store.all(r.plural, namespace) if matches(body)]
            version = str(self.store.version)
        metadata: Json = {"resourceVersion": version}
        limit, begin = int(query.get("limit") or 0), int((query.get("continue") or "0:0").split(":")[0])
        if limit and begin + limit < len(found):
            metadata |= {"continue": f"{begin + limit}:{version}", "remainingItemCount": len(found) - begin - limit}
        page = found[begin : begin + limit] if limit else found[begin:]
        return {"kind": f"{r.kind}List", "apiVersion": r.api_version, "metadata": metadata, "items": page}

    def watch(
        self, r: Resource, namespace: str | None, query: dict[str, str], bookmark_seconds: float
    ) -> Iterator[Json | None]:
        """Events; None when there is nothing to say for a moment, so that the caller can see whether anybody listens."""
        matches = self._matching(query)
        ends_at = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
        bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        given = query.get("resourceVersion") or ""
        since = int(given) if given not in ("", "0") else self.store.version
        if given in ("", "0") or query.get("sendInitialEvents") == "true":
            plain = {key: value for key, value in query.items() if key not in ("limit", "continue")}
            first = self.list(r, namespace, plain)
            since = int(first["metadata"]["resourceVersion"])
            for body in first["items"]:
                yield {"type": "ADDED", "object": body}
            if query.get("sendInitialEvents") == "true":
                yield self._bookmark(r, since, {"k8s.io/initial-events-end": "true"})
        marked_at = time.monotonic()
        while time.monotonic() < ends_at:
            try:
                with self.store.lock:
                    changes = list(self.store.changes(r.plural, since))
                    seen = self.store.version
                    if not changes:
                        self.store.lock.wait(0.1)
            except Failure as failure:
                yield {"type": "ERROR", "object": failure.status()}
                return
            for change in changes:
                event = self._event(change, namespace, matches)
                if event:
                    yield event
            since = seen
            if bookmarks and time.monotonic() - marked_at > bookmark_seconds:
                marked_at = time.monotonic()
                yield self._bookmark(r, since, {})
            elif not changes:
                yield None

    @staticmethod
    def _bookmark(r: Resource, version: int, annotations: dict[str, str]) -> Json:
        metadata = {"resourceVersion": str(version), "annotations": annotations}
        return {"type": "BOOKMARK", "object": {"kind": r.kind, "apiVersion": r.api_version, "metadata": metadata}}

    @staticmethod
    def _event(change: Change, namespace: str | None, matches: Callable[[Json], bool]) -> Json | None:
        def shown(body: Json | None) -> bool:
            return body is not None and namespace in (None, body["metadata"].get("namespace", "")) and matches(body)

        before, after = shown(change.before), shown(change.after)
        if not before and not after:
            return None
        body = copy.deepcopy(change.after if change.after is not None and after else change.before)
        assert body is not None
        body["metadata"]["resourceVersion"] = str(change.version)
        return {"type": "MODIFIED" if before and after else "ADDED" if after else "DELETED", "object": body}

    @staticmethod
    def _matching(query: dict[str, str]) -> Callable[[Json], bool]:
        labels, fields = label_selector(query.get("labelSelector", "")), field_selector(query.get("fieldSelector", ""))
        return lambda body: labels(body) and fields(body)

    # Writing

    def create(self, r: Resource, namespace: str | None, body: Json, manager: str) -> Json:
        self._place(r, namespace, body)
        if not body["metadata"].get("name") and body["metadata"].get("generateName"):
            body["metadata"]["name"] = f"{body['metadata']['generateName']}{self.store.version}"
        return self.store.create(r.plural, body, manager, self._finish)

    def apply(
        self, r: Resource, namespace: str | None, name: str, body: Json, query: dict[str, str]
    ) -> tuple[Json, bool]:
        manager = query.get("fieldManager")
        if not manager:
            raise Failure(400, "BadRequest", "fieldManager is required for apply patch")
        if body.get("metadata", {}).get("managedFields"):
            raise Failure(400, "BadRequest", "metadata.managedFields must be nil")
        self._place(r, namespace, body)
        if body["metadata"].get("name") != name:
            raise Failure(400, "BadRequest", "the name of the object does not match the name on the URL")
        return self.store.apply(r.plural, body, manager, force=query.get("force") == "true", finish=self._finish)

    def merge(
        self, r: Resource, namespace: str | None, name: str, patch: Json, manager: str, *, status: bool = False
    ) -> Json:
        def how(body: Json) -> Json:
            after = _merged(body, patch)
            return after if status or r.plural != "pods" else {**after, "status": body.get("status", {})}

        return self.store.change(r.plural, namespace or "", name, how, manager, self._finish)

    def replace(
        self, r: Resource, namespace: str | None, name: str, body: Json, manager: str, *, status: bool = False
    ) -> Json:
        self._place(r, namespace, body)

        def how(now: Json) -> Json:
            if status:
                return {**now, "status": body.get("status", {})}
            return {**body, **({"status": now["status"]} if "status" in now else {})}

        return self.store.change(r.plural, namespace or "", name, how, manager, self._finish)

    def _place(self, r: Resource, namespace: str | None, body: Json) -> None:
        metadata = body.setdefault("metadata", {})
        if body.get("kind") != r.kind or body.get("apiVersion") != r.api_version:
            raise Failure(400, "BadRequest", f"the object is no {r.kind} of {r.api_version}")
        if r.namespaced:
            if metadata.setdefault("namespace", namespace) != namespace:
                raise Failure(
                    400, "BadRequest", "the namespace of the object does not match the namespace on the request"
                )
            self.store.read("namespaces", "", str(namespace))

    def _finish(self, before: Json | None, after: Json) -> None:
        if before is not None and before["metadata"].get("deletionTimestamp"):
            after["metadata"]["deletionTimestamp"] = before["metadata"]["deletionTimestamp"]
        if before is None and after["metadata"].get("uid"):
            raise invalid(after["kind"], after["metadata"].get("name", ""), [("metadata.uid", "must not be set")])
        admission.fill_in(after)
        admission.check(before, after, self.version)
        if after["kind"] == "Pod" and before is None:
            space = self.store.find("namespaces", "", after["metadata"]["namespace"]) or {}
            if (space["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce") == "restricted":
                admission.require_restricted(after)
        for hook in self.hooks:
            hook(before, after)

    # Deleting

    def delete(self, r: Resource, namespace: str | None, name: str, options: Json) -> tuple[Json, bool]:
        """The object, and whether it is gone."""
        with self.store.lock:
            body = self.store.read(r.plural, namespace or "", name)
            wanted = (options.get("preconditions") or {}).get("uid")
            if wanted and wanted != body["metadata"]["uid"]:
                told = (
                    f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {body['metadata']['uid']}"
                )
                raise Failure(409, "Conflict", told)
            if r.plural == "pods":
                ending = self._end_pod(body, options.get("gracePeriodSeconds"))
                if ending is not None:
                    return ending, False
            gone = self.store.remove(r.plural, namespace or "", name)
            self.collect_garbage()
            return gone, True

    def _end_pod(self, pod: Json, grace: int | None) -> Json | None:
        """The pod with its time to end; None: it goes at once."""
        given = pod["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
        over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if given == 0 or over or not pod["spec"].get("nodeName"):
            return None
        ends = timestamp(time.time() + given)
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp") and metadata["deletionTimestamp"] <= ends:
            return pod

        def how(body: Json) -> None:
            body["metadata"] |= {"deletionTimestamp": ends, "deletionGracePeriodSeconds": given}

        return self.store.change("pods", metadata["namespace"], metadata["name"], how, "apiserver")

    def collect_garbage(self) -> None:
        for plural, namespace, name in self.store.orphans():
            found = self.store.find(plural, namespace, name)
            if found is not None:
                self.delete(by_kind(found["kind"]), namespace, name, {})

    def evict(self, namespace: str, name: str, options: Json) -> None:
        """Raises Failure 429 when a disruption budget forbids it."""
        pod = self.store.read("pods", namespace, name)
        for budget in self.store.all("poddisruptionbudgets", namespace):
            labels = budget["spec"]["selector"]["matchLabels"]
            mine = [
                p
                for p in self.store.all("pods", namespace)
                if labels.items() <= (p["metadata"].get("labels") or {}).items()
            ]
            healthy = [p for p in mine if _is_ready(p) and "deletionTimestamp" not in p["metadata"]]
            if (
                any(p["metadata"]["uid"] == pod["metadata"]["uid"] for p in healthy)
                and len(healthy) <= budget["spec"]["minAvailable"]
            ):
                needs = f"The disruption budget {budget['metadata']['name']} needs {budget['spec']['minAvailable']} healthy pods"
                cause = {"reason": "DisruptionBudget", "message": needs}
                told = "Cannot evict pod as it would violate the pod's disruption budget."
                raise Failure(429, "TooManyRequests", told, [cause], retry=10)
        self.disrupt(namespace, name, "EvictionByEvictionAPI")
        self.delete(by_kind("Pod"), namespace, name, options.get("deleteOptions") or {})

    def disrupt(self, namespace: str, name: str, reason: str) -> None:
        """Says beforehand that a pod will be taken away."""
        told = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": timestamp()}
        self.set_condition(namespace, name, told)

    def set_condition(self, namespace: str, name: str, told: Json) -> None:
        def how(body: Json) -> None:
            conditions = [c for c in body["status"].get("conditions") or [] if c["type"] != told["type"]]
            body["status"]["conditions"] = [*conditions, told]

        self.store.change("pods", namespace, name, how, "kubelet")


def _is_ready(pod: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions") or [])


def _merged(body: Any, patch: Any) -> Any:
    """JSON merge patch, RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    body = copy.deepcopy(body) if isinstance(body, dict) else {}
    for key, value in patch.items():
        if value is None:
            body.pop(key, None)
        else:
            body[key] = _merged(body.get(key), value)
    return body
