"""Who we are to an API server: a kubeconfig, or the service account of the pod that we run in.

Read anew whenever it may have changed: tokens of pods are replaced every hour.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import yaml

from berth.compute.provider import ProviderError, ProviderUnavailable
from berth.compute.providers.kubernetes.clusters import Cluster

_POD_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_EXEC_SECONDS: Final = 20
_REREAD_SECONDS: Final = 60.0
_EXEC_ENVIRONMENT: Final = ("PATH", "HOME", "LANG")


class Credentials:
    """Where an API server is, how it proves itself, and how we do. Safe to use from several threads."""

    def __init__(self, url: str, context: ssl.SSLContext, token: Token | None) -> None:
        self.url: SplitResult = urlsplit(url)
        self.context = context
        self._token = token

    def authorization(self) -> str | None:
        """Value of the Authorization header; None where a client certificate speaks for us. Raises ProviderUnavailable."""
        return f"Bearer {self._token.value()}" if self._token else None


class Token:
    """A bearer token that does not change."""

    def __init__(self, text: str) -> None:
        self._text = text

    def value(self) -> str:
        return self._text


class FileToken(Token):
    """A bearer token in a file that somebody replaces now and then."""

    def __init__(self, path: Path) -> None:
        super().__init__("")
        self._path = path
        self._read_at = float("-inf")

    def value(self) -> str:
        if time.monotonic() - self._read_at > _REREAD_SECONDS:
            try:
                self._text = self._path.read_text().strip()
            except OSError as error:
                raise ProviderUnavailable(f"The cluster's token cannot be read: {error.strerror}.") from None
            self._read_at = time.monotonic()
        return self._text


class ExecToken(Token):
    """A bearer token that a program gives out, as the kubeconfig says. Only made where the operator allows it."""

    def __init__(self, command: list[str], environment: Mapping[str, str], api_version: str) -> None:
        super().__init__("")
        self._command = command
        self._environment = dict(environment)
        self._api_version = api_version
        self._until = 0.0  # Unix seconds

    def value(self) -> str:
        if time.time() > self._until - 30:
            self._text, self._until = self._ask()
        return self._text

    def _ask(self) -> tuple[str, float]:
        info = {"kind": "ExecCredential", "apiVersion": self._api_version, "spec": {"interactive": False}}
        environment = {name: os.environ[name] for name in _EXEC_ENVIRONMENT if name in os.environ}
        try:
            done = subprocess.run(
                self._command,
                env=environment | self._environment | {"KUBERNETES_EXEC_INFO": json.dumps(info)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_EXEC_SECONDS,
                check=True,
            )
            status = json.loads(done.stdout)["status"]
            until = status.get("expirationTimestamp")
            return str(status["token"]), _unix(until) if until else time.time() + 600
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
            raise ProviderUnavailable(
                f"The program that gives out the cluster's token did not work ({type(error).__name__})."
            ) from None


def credentials_of(cluster: Cluster) -> Credentials:
    """Raises ProviderError, ProviderUnavailable."""
    if cluster.in_cluster:
        return _in_cluster(_POD_FOLDER, os.environ)
    return _from_kubeconfig(Path(cluster.kubeconfig or ""), cluster)


def _in_cluster(folder: Path, environ: Mapping[str, str]) -> Credentials:
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "ca.crt").is_file():
        raise ProviderError("in_cluster is set, but Berth does not run in a pod with a service account's token.")
    context = _context()
    context.load_verify_locations(cafile=str(folder / "ca.crt"))
    shown = f"[{host}]" if ":" in host else host
    return Credentials(f"https://{shown}:{port}", context, FileToken(folder / "token"))


def _from_kubeconfig(path: Path, cluster: Cluster) -> Credentials:
    config = _read(path)
    try:
        named = cluster.context or config["current-context"]
        context = _entry(config, "contexts", named)["context"]
        server = _entry(config, "clusters", context["cluster"])["cluster"]
        user = _entry(config, "users", context["user"])["user"]
        url = str(server["server"])
    except (KeyError, TypeError) as error:
        raise ProviderError(f"The kubeconfig {path} lacks {error}.") from None
    if urlsplit(url).scheme != "https":
        raise ProviderError(f"The kubeconfig {path} names a server that is not https. Secrets pass there.")
    if server.get("insecure-skip-tls-verify"):
        raise ProviderError(
            f"The kubeconfig {path} says insecure-skip-tls-verify. Give the server's certificate instead."
        )
    tls = _context()
    authority = _material(server, "certificate-authority", path)
    if authority:
        tls.load_verify_locations(cadata=authority.decode())
    else:
        tls.load_default_certs()
    _load_client_certificate(tls, user, path)
    return Credentials(url, tls, _token(user, path, cluster))


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # demands a certificate for the very host name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _read(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ProviderError(f"The kubeconfig {path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ProviderError(f"The kubeconfig {path} is no YAML.") from None
    if not isinstance(config, dict):
        raise ProviderError(f"The kubeconfig {path} is empty.")
    return config


def _entry(config: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    for entry in config[kind]:
        if entry["name"] == name:
            found: dict[str, Any] = entry
            return found
    raise KeyError(f"{kind}: {name}")


def _material(holder: Mapping[str, Any], key: str, path: Path) -> bytes | None:
    """What a kubeconfig holds inline as base64 or names as a file."""
    try:
        if inline := holder.get(f"{key}-data"):
            return base64.b64decode(str(inline), validate=True)
        if named := holder.get(key):
            return (path.parent / str(named)).read_bytes()
    except (OSError, binascii.Error):
        raise ProviderError(f"The kubeconfig {path}: {key} cannot be read.") from None
    return None


def _load_client_certificate(tls: ssl.SSLContext, user: Mapping[str, Any], path: Path) -> None:
    certificate, key = _material(user, "client-certificate", path), _material(user, "client-key", path)
    if not certificate or not key:
        return
    with tempfile.TemporaryDirectory() as folder:  # ssl reads files only
        pair = Path(folder) / "pair.pem"
        pair.touch(mode=0o600)
        pair.write_bytes(certificate + b"\n" + key)
        try:
            tls.load_cert_chain(str(pair))
        except (ssl.SSLError, OSError):
            raise ProviderError(f"The kubeconfig {path}: the client certificate cannot be used.") from None


def _token(user: Mapping[str, Any], path: Path, cluster: Cluster) -> Token | None:
    if user.get("token"):
        return Token(str(user["token"]))
    if user.get("tokenFile"):
        return FileToken(path.parent / str(user["tokenFile"]))
    plugin = user.get("exec")
    if not plugin:
        return None
    if not cluster.allow_exec:
        raise ProviderError(
            f"The kubeconfig {path} wants to run a program to get a token. If you trust the file, set allow_exec = true "
            f"for cluster {cluster.name}; better, use a service account's token."
        )
    environment = {str(pair["name"]): str(pair["value"]) for pair in plugin.get("env") or []}
    command = [str(plugin["command"]), *map(str, plugin.get("args") or [])]
    return ExecToken(command, environment, str(plugin.get("apiVersion", "client.authentication.k8s.io/v1")))


def _unix(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
