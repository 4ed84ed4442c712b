"""A gateway from a snapshot file: no Valkey, several workers, TLS of its own."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from berth.host.child import free_port
from berth_gateway.config import ConfigError
from berth_gateway.contract import key_well_formed, usage_key, worker_key, worker_name
from berth_gateway.records import SETTLED, read_records
from berth_gateway.snapshot_file import FileStore, SnapshotFileError, example, parse
from berth_gateway.tls import Certificate
from tests.gateway.harness import MASTER, PATIENCE, ROOT, Engine, chat, get, post, raw_post, wait_for

TOKEN = "bth_sk_" + "c" * 43


def snapshot_file(port: int, *, token: str = TOKEN, limits: dict[str, Any] | None = None) -> str:
    key = {"id": "key-1", "organization": "acme", "sha256": hashlib.sha256(token.encode()).hexdigest()}
    model = {
        "name": "acme/model",
        "organization": "acme",
        "engine": "llamacpp",
        "engine_model": "m",
        "context_length": 2048,
        "replicas": [{"port": port}],
    }
    return json.dumps(
        {"organizations": [{"id": "acme"}], "keys": [key | ({"limits": limits} if limits else {})], "models": [model]}
    )


class Alone:
    """`python -m berth_gateway --snapshot FILE`."""

    def __init__(self, folder: Path, engine: Engine, *arguments: str, **environ: str) -> None:
        self.folder, self.port = folder, free_port()
        self.file = folder / "snapshot.json"
        self.file.write_text(snapshot_file(engine.port))
        self.log = folder / "log"
        command = [sys.executable, "-m", "berth_gateway", "--snapshot", str(self.file), "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--spool", str(folder / "spool"), *arguments],
                env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "platform"), **environ},
                stderr=log,
            )

    def lines(self, event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in found if line["event"] == event]

    def ready(self, workers: int = 1) -> Alone:
        wait_for(lambda: len(self.lines("listening")) >= workers, "the gateway", alive=self.process)
        return self

    def events(self) -> list[Any]:
        files = sorted((self.folder / "spool").rglob("*.spool"))
        return [e for f in files for kind, e in read_records(f, f.stat().st_size) if kind == SETTLED]

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@pytest.fixture
def started() -> Iterator[list[Alone]]:
    running: list[Alone] = []
    yield running
    for each in running:
        each.stop()


def test_a_gateway_alone_serves_meters_and_follows_its_file(
    tmp_path: Path, engine: Engine, started: list[Alone]
) -> None:
    gateway = Alone(tmp_path, engine)
    started.append(gateway)
    gateway.ready()
    assert post(gateway.port, "/v1/chat/completions", chat(), TOKEN).status == 200
    assert [e.gateway for e in gateway.events()] == ["gateway"]

    fresh = "bth_sk_" + "d" * 43
    gateway.file.write_text("{")
    wait_for(lambda: gateway.lines("snapshot_refused"), "the broken file to be refused")
    assert post(gateway.port, "/v1/chat/completions", chat(), TOKEN).status == 200  # the last good one stays
    gateway.file.write_text(snapshot_file(engine.port, token=fresh))
    wait_for(lambda: get(gateway.port, "/v1/models", fresh).status == 200, "the new key")
    assert get(gateway.port, "/v1/models", TOKEN).status == 401


def test_limits_hold_without_valkey(tmp_path: Path, engine: Engine, started: list[Alone]) -> None:
    gateway = Alone(tmp_path, engine)
    started.append(gateway)
    gateway.file.write_text(snapshot_file(engine.port, limits={"rpm": 2}))
    gateway.ready()
    wait_for(lambda: post(gateway.port, "/v1/chat/completions", chat(), TOKEN).status == 429, "the limit to be reached")
    assert len(gateway.events()) <= 4  # at most two under each of the two files


def test_workers_share_the_port_and_one_that_dies_is_started_anew(
    tmp_path: Path, engine: Engine, started: list[Alone]
) -> None:
    gateway = Alone(tmp_path, engine, "--workers", "2")
    started.append(gateway)
    gateway.ready(2)
    assert {line["gateway"] for line in gateway.lines("listening")} == {"gateway:1", "gateway:2"}

    def both() -> bool:
        assert post(gateway.port, "/v1/chat/completions", chat(), TOKEN).status == 200
        return {e.gateway for e in gateway.events()} == {"gateway:1", "gateway:2"}

    wait_for(both, "both workers to have served")
    children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    wait_for(lambda: len(gateway.lines("listening")) == 3, "a new worker")
    before = len(gateway.events())
    assert post(gateway.port, "/v1/chat/completions", chat(), TOKEN).status == 200
    assert len(gateway.events()) == before + 1
    assert gateway.stop() == 0
    assert [Path(f"/proc/{pid}").exists() for pid in children] == [False, False]


def test_a_setting_that_is_wrong_stops_all_workers_with_one_code(tmp_path: Path, engine: Engine) -> None:
    gateway = Alone(tmp_path, engine, "--workers", "2", BERTH_GATEWAY_TLS_CERTIFICATE_FILE="/none")
    assert gateway.process.wait(PATIENCE) == 2
    assert "belong together" in gateway.log.read_text()


def test_the_control_plane_derives_a_workers_key_from_its_name() -> None:
    own = usage_key(MASTER, "eu-1")
    assert usage_key(MASTER, worker_name("eu-1", 3)) == worker_key(own, 3)
    assert len({own, worker_key(own, 1), worker_key(own, 2), usage_key(MASTER, "eu-1-1")}) == 4


def test_the_example_can_be_read_and_holds_no_key() -> None:
    text, token = example()
    assert key_well_formed(token)
    assert token.encode() not in text
    view = parse(text, version=1, issued_at=0)
    assert view.keys.get(hashlib.sha256(token.encode()).digest()) is not None


@pytest.mark.parametrize(
    "wrong", [b"", b"[]", b'{"keys": []}', b'{"organizations":[],"keys":[],"models":[],"model":[]}']
)
def test_a_file_of_another_form_is_refused_with_a_sentence(wrong: bytes) -> None:
    with pytest.raises(SnapshotFileError, match="cannot be used"):
        parse(wrong, version=1, issued_at=0)


def test_what_belongs_to_nobody_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    file.write_text(snapshot_file(1).replace('"organizations": [{"id": "acme"}]', '"organizations": []'))
    with pytest.raises(SnapshotFileError, match="no organization 'acme'"):
        FileStore(file).refresh(0.0)


# --- TLS


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "tls.crt", folder / "tls.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


def dial(port: int, version: ssl.TLSVersion | None = None) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), PATIENCE))


def common_name(sock: ssl.SSLSocket) -> str:
    der = sock.getpeercert(binary_form=True)
    assert der is not None
    return str(x509.load_der_x509_certificate(der).subject.rfc4514_string())


def ask(sock: ssl.SSLSocket) -> bytes:
    sock.sendall(raw_post("/v1/chat/completions", json.dumps(chat()).encode(), TOKEN))
    got = b""
    while b'"usage"' not in got or not got.endswith(b"}"):
        more = sock.recv(65536)
        assert more, "closed"
        got += more
    return got


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_a_new_certificate_is_taken_and_old_connections_live_on(
    tmp_path: Path, engine: Engine, started: list[Alone]
) -> None:
    certificate, key = make_certificate(tmp_path, "first")
    gateway = Alone(
        tmp_path, engine, BERTH_GATEWAY_TLS_CERTIFICATE_FILE=str(certificate), BERTH_GATEWAY_TLS_KEY_FILE=str(key)
    )
    started.append(gateway)
    gateway.ready()
    with dial(gateway.port) as old:
        assert common_name(old) == "CN=first"
        assert ask(old).startswith(b"HTTP/1.1 200 ")
        make_certificate(tmp_path, "second")
        wait_for(lambda: gateway.lines("certificate_loaded"), "the new certificate")
        with dial(gateway.port) as new:
            assert common_name(new) == "CN=second"
            assert ask(new).startswith(b"HTTP/1.1 200 ")
        assert ask(old).startswith(b"HTTP/1.1 200 ")
    with pytest.raises(ssl.SSLError):
        dial(gateway.port, ssl.TLSVersion.TLSv1_1)


def test_a_pair_that_does_not_fit_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "good")
    loaded = Certificate(certificate, key)
    other = tmp_path / "other"
    other.mkdir()
    _, wrong = make_certificate(other, "other")
    key.write_bytes(wrong.read_bytes())
    assert loaded.refresh() is False
    make_certificate(tmp_path, "next")
    assert loaded.refresh() is True
    assert loaded.refresh() is None
    with pytest.raises(ConfigError, match="PEM"):
        Certificate(wrong, certificate)
