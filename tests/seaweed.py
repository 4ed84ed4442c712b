"""SeaweedFS for tests: a real S3 service in one process, which checks signatures."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from berth.host.child import free_port

KEY_ID, SECRET, BUCKET = "berth-test", "a secret that only tests know", "models"


@dataclass(frozen=True)
class Seaweed:
    endpoint: str

    @property
    def host(self) -> str:
        return self.endpoint.removeprefix("http://")


def weed() -> str:
    found = Path(sys.prefix, "bin", "weed")
    return str(found) if found.exists() else shutil.which("weed") or "weed"


@contextmanager
def seaweed(folder: Path) -> Iterator[Seaweed]:
    """A running service with an empty bucket; ended with the context."""
    folder.mkdir(parents=True)
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    keys = [{"accessKey": KEY_ID, "secretKey": SECRET}]
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [{"name": "berth", "credentials": keys, "actions": actions}]}))
    ports = {
        name: free_port()
        for name in ("master", "volume", "filer", "s3", "master.grpc", "volume.grpc", "filer.grpc", "s3.grpc", "admin")
    }
    argv = [
        weed(), "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-admin.ui=false", "-webdav=false",
        "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={config}", f"-bucket={BUCKET}", "-master.telemetry=false",
        f"-master.port={ports['master']}", f"-master.port.grpc={ports['master.grpc']}",
        f"-volume.port={ports['volume']}", f"-volume.port.grpc={ports['volume.grpc']}",
        f"-filer.port={ports['filer']}", f"-filer.port.grpc={ports['filer.grpc']}",
        f"-s3.port={ports['s3']}", f"-s3.port.grpc={ports['s3.grpc']}", f"-admin.port={ports['admin']}",
    ]  # fmt: skip
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder)
    try:
        service = Seaweed(f"http://127.0.0.1:{ports['s3']}")
        _wait(service, process, folder / "weed.log")
        yield service
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def client(service: Seaweed, key_id: str = KEY_ID, secret: str = SECRET) -> object:
    return boto3.client(
        "s3",
        endpoint_url=service.endpoint,
        region_name="us-east-1",
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
    )


def _wait(service: Seaweed, process: subprocess.Popen[bytes], log: Path) -> None:
    asks = client(service)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            asks.put_object(Bucket=BUCKET, Key="ready", Body=b"1")  # type: ignore[attr-defined]
            asks.delete_object(Bucket=BUCKET, Key="ready")  # type: ignore[attr-defined]
            return
        except (BotoCoreError, ClientError):
            time.sleep(0.1)
    raise RuntimeError(f"SeaweedFS did not start: {log.read_text()[-2000:]}")
