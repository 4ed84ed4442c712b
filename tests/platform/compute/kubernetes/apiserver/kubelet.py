"""A kubelet for all nodes: it really starts each pod's process, on a loopback address of its own, and probes it over HTTP.

A container's mounts become folders, and arguments that name a path in a mount are rewritten to them. What cannot be had
here (images, devices, evictions, lost nodes) is scripted: `images`, `fail_next`, `kill`, `evict`, `lose_node` …
"""

from __future__ import annotations

import contextlib
import http.client
import random
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

from tests.platform.compute.kubernetes.apiserver.api import Api
from tests.platform.compute.kubernetes.apiserver.container import Container
from tests.platform.compute.kubernetes.apiserver.failure import Failure
from tests.platform.compute.kubernetes.apiserver.groups import make_groups
from tests.platform.compute.kubernetes.apiserver.scheduler import schedule
from tests.platform.compute.kubernetes.apiserver.store import timestamp

Json = dict[str, Any]


class Kubelet:
    """Ends with `close`, and everything that it started with it. `claims`: folder by PersistentVolumeClaim."""

    def __init__(self, api: Api, folder: Path, claims: dict[str, Path] | None = None) -> None:
        self.api = api
        self.folder = folder
        self.claims = claims or {}
        self.images: set[str] | None = None  # None: every image can be pulled
        self.lost: set[str] = set()  # nodes that do not answer
        self.containers: dict[str, Container] = {}  # by the pod's uid
        self.scheduling = True
        self._network = f"127.{random.randint(64, 250)}.{random.randint(1, 250)}"
        self._next = 1
        self._ended = threading.Event()
        api.logs = self.read_log
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self._thread.start()

    def add_node(
        self, name: str, *, labels: dict[str, str] | None = None, taints: list[Json] | None = None, **resources: str
    ) -> None:
        allocatable = {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110", **resources}
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "spec": {"taints": taints} if taints else {},
            "status": {
                "allocatable": {
                    key.replace("__", "/").replace("_dot_", "."): value for key, value in allocatable.items()
                },
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }
        self.api.store.create("nodes", body, "kubelet", lambda before, after: None)

    # Scripts

    def kill(self, pod: Json, reason: str | None = None) -> None:
        """SIGKILL to the container's process, as the kernel does when memory is short (`OOMKilled`)."""
        container = self.containers[pod["metadata"]["uid"]]
        container.reason = reason
        assert container.process
        container.process.kill()

    def evict(self, pod: Json, resource: str = "memory") -> None:
        """As a node does that runs short of something: the pod fails and stays."""
        self.kill(pod, "Error")
        container = self.containers[pod["metadata"]["uid"]]
        assert container.process
        container.process.wait(timeout=20)
        self._status(
            pod,
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": f"The node was low on resource: {resource}. Threshold quantity: 100Mi.",
            },
        )

    def lose_node(self, name: str) -> None:
        """Its kubelet is silent: the control plane says so of the node, and that its pods are not ready."""
        self.lost.add(name)

        def how(body: Json) -> None:
            body["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]

        self.api.store.change("nodes", "", name, how, "controller")

    def remove_node(self, name: str) -> None:
        """A spot machine that was taken back: its pods are collected."""
        self.lost.add(name)
        self.api.store.remove("nodes", "", name)
        for pod in self.api.store.all("pods"):
            if pod["spec"].get("nodeName") == name:
                space, called = pod["metadata"]["namespace"], pod["metadata"]["name"]
                self.api.disrupt(space, called, "DeletionByPodGC")
                if container := self.containers.get(pod["metadata"]["uid"]):
                    container.end()
                with contextlib.suppress(Failure):
                    self.api.store.remove("pods", space, called)

    def pod(self, name: str, namespace: str = "berth-runtime") -> Json:
        return self.api.store.read("pods", namespace, name)

    def read_log(self, pod: Json, name: str, tail: int | None, most: int | None) -> bytes:
        """Raises Failure as the log subresource does."""
        container = self.containers.get(pod["metadata"]["uid"])
        if pod["spec"].get("nodeName") in self.lost:
            raise Failure(500, "InternalError", "the node does not answer")
        if container is None or not container.log.exists():
            raise Failure(
                400,
                "BadRequest",
                f'container "{name}" in pod "{pod["metadata"]["name"]}" is waiting to start: ContainerCreating',
            )
        text = container.log.read_bytes()
        if tail is not None:
            text = b"".join(text.splitlines(keepends=True)[-tail:])
        return text[:most] if most is not None else text

    def close(self) -> None:
        self._ended.set()
        self._thread.join(timeout=20)
        for container in self.containers.values():
            container.end()

    # How

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            with contextlib.suppress(Failure):
                make_groups(self.api)
            with contextlib.suppress(Failure):  # somebody else changed the object meanwhile: the next look sees it
                if self.scheduling:
                    schedule(self.api)
            for pod in self.api.store.all("pods"):
                if pod["spec"].get("nodeName") and pod["spec"]["nodeName"] not in self.lost:
                    with contextlib.suppress(Failure):
                        self._tend(pod)
            living = {pod["metadata"]["uid"] for pod in self.api.store.all("pods")}
            for uid in self.containers.keys() - living:
                self.containers.pop(uid).end()

    def _tend(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        container = self.containers.get(uid)
        if container is None:
            if pod["status"].get("phase") == "Pending":
                self._create(pod) if "deletionTimestamp" not in pod["metadata"] else self._gone(pod)
            return
        if container.process is None or pod["status"].get("phase") in ("Succeeded", "Failed"):
            if "deletionTimestamp" in pod["metadata"]:
                self._gone(pod)
            return
        code = container.process.poll()
        if code is not None:
            self._terminated(pod, container, code)
        elif "deletionTimestamp" in pod["metadata"]:
            self._terminate(pod, container)
        else:
            self._probe(pod, container)

    def _create(self, pod: Json) -> None:
        missing = self._missing(pod)
        if missing:
            waiting = {
                "name": "runtime",
                "ready": False,
                "restartCount": 0,
                "image": "",
                "imageID": "",
                "state": {"waiting": missing},
            }
            if (pod["status"].get("containerStatuses") or [{}])[0].get("state") != {"waiting": missing}:
                self._status(pod, {"containerStatuses": [waiting]})
            return
        uid = pod["metadata"]["uid"]
        container = Container(self.folder / uid, self._address())
        self.containers[uid] = container
        spec = pod["spec"]["containers"][0]
        container.mount(pod, self.api, self.claims)
        container.launch(pod)
        running = {
            "name": spec["name"],
            "ready": False,
            "started": False,
            "restartCount": 0,
            "image": spec["image"],
            "imageID": spec["image"],
            "state": {"running": {"startedAt": timestamp()}},
        }
        self._status(
            pod,
            {"phase": "Running", "podIP": container.address, "startTime": timestamp(), "containerStatuses": [running]},
        )

    def _missing(self, pod: Json) -> Json | None:
        space = pod["metadata"]["namespace"]
        image = pod["spec"]["containers"][0]["image"]
        for volume in pod["spec"].get("volumes") or []:
            if "secret" in volume and self.api.store.find("secrets", space, volume["secret"]["secretName"]) is None:
                return {"reason": "ContainerCreating"}
            claim = volume.get("persistentVolumeClaim")
            if claim and claim["claimName"] not in self.claims:
                return {"reason": "ContainerCreating"}
        if self.images is not None and image not in self.images:
            return {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
        return None

    def _probe(self, pod: Json, container: Container) -> None:
        spec = pod["spec"]["containers"][0]
        probe = spec.get("readinessProbe")
        ready = True
        if probe:
            [port] = [each["containerPort"] for each in spec["ports"] if each["name"] == probe["httpGet"]["port"]]
            ready = _ask(container.address, port, probe["httpGet"]["path"]) == 200
        if ready != container.ready:
            container.ready = ready
            self._ready(pod, ready)

    def _ready(self, pod: Json, ready: bool) -> None:
        def how(body: Json) -> None:
            rest = [c for c in body["status"].get("conditions") or [] if c["type"] != "Ready"]
            told = {"type": "Ready", "status": str(ready), "lastTransitionTime": timestamp()}
            body["status"]["conditions"] = [*rest, told]
            body["status"]["containerStatuses"][0] |= {"ready": ready, "started": True}

        self.api.store.change("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], how, "kubelet")

    def _terminate(self, pod: Json, container: Container) -> None:
        assert container.process
        deadline = _unix(pod["metadata"]["deletionTimestamp"])
        if time.time() >= deadline:
            container.process.kill()
        elif not container.term_sent:
            container.term_sent = True
            container.process.send_signal(signal.SIGTERM)

    def _terminated(self, pod: Json, container: Container, code: int) -> None:
        number = 128 - code if code < 0 else code
        message = container.last_word.read_text() if container.last_word.exists() else ""
        over = {
            "exitCode": number,
            "reason": container.reason or ("Completed" if code == 0 else "Error"),
            "finishedAt": timestamp(),
            **({"message": message} if message else {}),
        }
        spec = pod["spec"]["containers"][0]
        again = pod["spec"]["restartPolicy"] == "Always" and "deletionTimestamp" not in pod["metadata"]
        state = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": over}}
        ended = {
            "name": spec["name"],
            "ready": False,
            "restartCount": 0,
            "image": spec["image"],
            "imageID": spec["image"],
            **(state if again else {"state": {"terminated": over}}),
        }
        if again:
            self._status(pod, {"containerStatuses": [ended]}, ready=False)
            return
        self._status(pod, {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": [ended]}, ready=False)

    def _gone(self, pod: Json) -> None:
        self.api.store.remove("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _status(self, pod: Json, status: Json, ready: bool | None = None) -> None:
        def how(body: Json) -> None:
            body["status"] = {**body.get("status", {}), **status}
            if ready is not None:
                rest = [c for c in body["status"].get("conditions") or [] if c["type"] != "Ready"]
                body["status"]["conditions"] = [
                    *rest,
                    {"type": "Ready", "status": str(ready), "lastTransitionTime": timestamp()},
                ]

        self.api.store.change("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], how, "kubelet")

    def _address(self) -> str:
        while True:
            self._next += 1
            address = f"{self._network}.{self._next}"
            with contextlib.suppress(OSError), socket.create_server((address, 0)):
                return address


def _ask(host: str, port: int, path: str) -> int:
    connection = http.client.HTTPConnection(host, port, timeout=1)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def _unix(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()
