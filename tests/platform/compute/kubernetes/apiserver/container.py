"""A container of the tests: a process, with folders where it believes that it has mounts."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.platform.compute.kubernetes.apiserver.api import Api

ROOT = Path(__file__).resolve().parents[5]
Json = dict[str, Any]


@dataclass
class Container:
    """A process and where its things are."""

    folder: Path
    address: str
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False
    started: bool = False
    mounts: dict[str, Path] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    term_sent: bool = False
    reason: str | None = None  # of its end, where a script decides

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def last_word(self) -> Path:
        return self.folder / "termination-log"

    def mount(self, pod: Json, api: Api, claims: dict[str, Path]) -> None:
        """Makes the folders of its volumes."""
        self.folder.mkdir(parents=True)
        sources: dict[str, Path] = {}
        for volume in pod["spec"].get("volumes") or []:
            source = self.folder / "volumes" / volume["name"]
            if "persistentVolumeClaim" in volume:
                source = claims[volume["persistentVolumeClaim"]["claimName"]]
            elif "secret" in volume:
                source.mkdir(parents=True)
                secret = api.store.read("secrets", pod["metadata"]["namespace"], volume["secret"]["secretName"])
                for name, data in secret["data"].items():
                    (source / name).write_bytes(base64.b64decode(data))
                    (source / name).chmod(volume["secret"].get("defaultMode", 0o644))
            else:
                source.mkdir(parents=True)
            sources[volume["name"]] = source
        for mount in pod["spec"]["containers"][0].get("volumeMounts") or []:
            self.mounts[mount["mountPath"]] = sources[mount["name"]]

    def launch(self, pod: Json) -> None:
        """Starts the process."""
        spec = pod["spec"]["containers"][0]
        self.variables = {each["name"]: self._variable(pod, each) for each in spec["env"]}
        arguments = [self.inside(text) for text in (*spec["command"], *spec.get("args", []))]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable if arguments[0] == "python" else arguments[0], *arguments[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(ROOT / "runtime"),
                    "BERTH_LLAMA_SERVER": "bundled",
                    **self.variables,
                },
                start_new_session=True,
            )

    def end(self) -> None:
        """At once, with everything that it started."""
        if self.process and self.process.poll() is None:
            self.process.kill()  # the kernel ends the engine with it
            self.process.wait(timeout=20)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _variable(self, pod: Json, variable: Json) -> str:
        if "value" in variable:
            return self.inside(variable["value"])
        field = variable["valueFrom"]["fieldRef"]["fieldPath"]
        if field == "status.podIP":
            return self.address
        label = field.removeprefix("metadata.labels['").removesuffix("']")
        return str(pod["metadata"]["labels"][label])

    def inside(self, text: str) -> str:
        """The same for a process that sees no mounts."""
        option, separator, path = text.partition("=") if text.startswith("--") else ("", "", text)
        if path == "/dev/termination-log":
            return option + separator + str(self.last_word)
        for name, value in self.variables.items():
            path = path.replace(f"$({name})", value)
        for mounted, source in sorted(self.mounts.items(), key=lambda each: -len(each[0])):
            if path == mounted or path.startswith(f"{mounted}/"):
                path = str(source) + path.removeprefix(mounted)
                break
        return option + separator + path
