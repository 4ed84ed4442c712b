"""Settings, read from the environment and checked."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from berth_gateway.addresses import Network
from berth_gateway.contract import worker_name
from berth_gateway.settings import SETTINGS

__all__ = ["SETTINGS", "Config", "ConfigError", "Otlp"]


class ConfigError(Exception):
    """A setting is wrong; the text is one sentence for people."""


# What a gateway alone does not need.
_SHARED = frozenset({"REDIS_URL", "BERTH_SNAPSHOT_PUBLIC_KEY_FILE", "BERTH_USAGE_KEY_FILE"})

_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}\Z")
_STANDARD = {  # where OpenTelemetry's own name stands for ours
    "BERTH_OTEL_EXPORTER_OTLP_ENDPOINT": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "BERTH_OTEL_EXPORTER_OTLP_HEADERS": "OTEL_EXPORTER_OTLP_HEADERS",
}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}\Z")


@dataclass(frozen=True, slots=True)
class Otlp:
    """Where traces go, with which headers, and how many (0 to 1)."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    sample: float = 1.0


@dataclass(frozen=True, slots=True)
class Config:
    """What the environment says, checked. Times in seconds. `worker`: which of several processes this is; 0: the only one."""

    name: str
    bind: str
    port: int
    admin_port: int | None
    reuse_port: bool
    folder: Path
    behind_tls_proxy: bool
    redis_url: str
    snapshot_public_key_file: Path
    usage_key_file: Path
    snapshot_max_age: float
    max_body: int
    idle: float
    head: float
    first_byte: float
    total: float
    keepalive: float
    drain: float
    log_requests: bool
    queue_length: int
    queue_seconds: float
    workers: int = 1
    worker: int = 0
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    snapshot_file: Path | None = None
    trusted_proxies: tuple[Network, ...] = ()
    otlp: Otlp | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Config:
        """Raises ConfigError."""
        values: dict[str, str] = {}
        alone = bool(environ.get("BERTH_GATEWAY_SNAPSHOT_FILE"))
        for setting in SETTINGS:
            value = environ.get(setting.name) or environ.get(_STANDARD.get(setting.name, "")) or setting.default
            if setting.name == "REDIS_URL":
                value = value or _text_of(environ.get("REDIS_URL_FILE"))
            if alone and setting.name in _SHARED:
                value = ""
            if value is None:
                raise ConfigError(f"{setting.name} is not set. {setting.help}")
            values[setting.name] = value
        read = _Reader(values)
        bind = read.address("BERTH_GATEWAY_BIND")
        behind_proxy = read.flag("BERTH_BEHIND_TLS_PROXY")
        certificate, key = read.file("BERTH_GATEWAY_TLS_CERTIFICATE_FILE"), read.file("BERTH_GATEWAY_TLS_KEY_FILE")
        if (certificate is None) != (key is None):
            raise ConfigError(
                "BERTH_GATEWAY_TLS_CERTIFICATE_FILE and BERTH_GATEWAY_TLS_KEY_FILE belong together: set both."
            )
        if not ipaddress.ip_address(bind).is_loopback and not behind_proxy and certificate is None:
            raise ConfigError(
                f"BERTH_GATEWAY_BIND is {bind}, which others can reach without TLS. Use 127.0.0.1, give the gateway a certificate "
                "(BERTH_GATEWAY_TLS_CERTIFICATE_FILE), or put a TLS proxy in front and set BERTH_BEHIND_TLS_PROXY=1."
            )
        return cls(
            name=read.name("BERTH_GATEWAY_NAME"),
            bind=bind,
            port=read.whole("BERTH_GATEWAY_PORT", 0, 65535),
            admin_port=read.whole("BERTH_GATEWAY_ADMIN_PORT", 1, 65535) if values["BERTH_GATEWAY_ADMIN_PORT"] else None,
            reuse_port=read.flag("BERTH_GATEWAY_REUSE_PORT"),
            folder=Path(values["BERTH_GATEWAY_DIR"]),
            behind_tls_proxy=behind_proxy,
            redis_url="" if alone else read.redis("REDIS_URL"),
            snapshot_public_key_file=Path(values["BERTH_SNAPSHOT_PUBLIC_KEY_FILE"]),
            usage_key_file=Path(values["BERTH_USAGE_KEY_FILE"]),
            snapshot_max_age=read.seconds("BERTH_SNAPSHOT_MAX_AGE_SECONDS"),
            max_body=read.whole("BERTH_MAX_BODY_BYTES", 1024, 1 << 31),
            idle=read.seconds("BERTH_GATEWAY_IDLE_SECONDS"),
            head=read.seconds("BERTH_GATEWAY_HEAD_SECONDS"),
            first_byte=read.seconds("BERTH_GATEWAY_FIRST_BYTE_SECONDS"),
            total=read.seconds("BERTH_GATEWAY_TOTAL_SECONDS"),
            keepalive=read.seconds("BERTH_GATEWAY_KEEPALIVE_SECONDS"),
            drain=read.seconds("BERTH_GATEWAY_DRAIN_SECONDS"),
            log_requests=read.flag("BERTH_GATEWAY_LOG_REQUESTS"),
            queue_length=read.whole("BERTH_GATEWAY_QUEUE_LENGTH", 0, 1_000_000),
            queue_seconds=read.seconds("BERTH_GATEWAY_QUEUE_SECONDS"),
            workers=read.whole("BERTH_GATEWAY_WORKERS", 1, 256),
            tls_certificate=certificate,
            tls_key=key,
            snapshot_file=read.file("BERTH_GATEWAY_SNAPSHOT_FILE"),
            trusted_proxies=read.networks("BERTH_GATEWAY_TRUSTED_PROXIES"),
            otlp=read.otlp(),
        )

    def for_worker(self, number: int) -> Config:
        """The settings of one of several processes: a name, a folder and a port for metrics of its own."""
        return replace(
            self,
            name=worker_name(self.name, number),
            folder=self.folder / f"worker-{number}",
            admin_port=None if self.admin_port is None else self.admin_port + number - 1,
            reuse_port=True,
            worker=number,
        )

    @property
    def metrics_on_main_port(self) -> bool:
        return self.admin_port is None and not self.behind_tls_proxy


def _text_of(path: str | None) -> str | None:
    """What a file holds; None without a path. Raises ConfigError."""
    if not path:
        return None
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ConfigError(f"REDIS_URL_FILE cannot be read: {error.strerror}.") from None


class _Reader:
    """Reads one setting at a time. Values are not quoted in errors, because some are secrets."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def whole(self, name: str, low: int, high: int) -> int:
        text = self._values[name].strip()
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ConfigError(f"{name} must be a whole number from {low} to {high}.")
        return int(text)

    def seconds(self, name: str) -> float:
        try:
            value = float(self._values[name])
        except ValueError:
            value = -1.0
        if not 0 < value < 1e9:
            raise ConfigError(f"{name} must be a number of seconds above 0.")
        return value

    def flag(self, name: str) -> bool:
        if self._values[name] not in ("0", "1"):
            raise ConfigError(f"{name} must be 0 or 1.")
        return self._values[name] == "1"

    def name(self, name: str) -> str:
        if not _NAME.match(self._values[name]):
            raise ConfigError(f"{name} must be 1 to 60 letters, digits, dots, dashes or underscores.")
        return self._values[name]

    def file(self, name: str) -> Path | None:
        return Path(self._values[name]) if self._values[name] else None

    def address(self, name: str) -> str:
        try:
            return str(ipaddress.ip_address(self._values[name]))
        except ValueError:
            raise ConfigError(f"{name} must be an IP address, such as 127.0.0.1.") from None

    def networks(self, name: str) -> tuple[Network, ...]:
        texts = [text.strip() for text in self._values[name].split(",") if text.strip()]
        try:
            return tuple(ipaddress.ip_network(text) for text in texts)
        except ValueError:
            raise ConfigError(f"{name} must be networks such as 10.0.0.0/8, separated by commas.") from None

    def otlp(self) -> Otlp | None:
        base = self._values["BERTH_OTEL_EXPORTER_OTLP_ENDPOINT"]
        try:
            share = float(self._values["BERTH_OTEL_SAMPLE"])
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise ConfigError("BERTH_OTEL_SAMPLE must be a number from 0 to 1.")
        if not base:
            return None
        url = urlsplit(base)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError("BERTH_OTEL_EXPORTER_OTLP_ENDPOINT must be a URL such as http://127.0.0.1:4318.")
        headers = []
        for pair in filter(None, self._values["BERTH_OTEL_EXPORTER_OTLP_HEADERS"].split(",")):
            name, mark, value = pair.partition("=")
            if not mark or not _HEADER.match(name.strip()) or not value.isprintable():
                raise ConfigError("BERTH_OTEL_EXPORTER_OTLP_HEADERS must be name=value, separated by commas.")
            headers.append((name.strip(), unquote(value.strip())))
        return Otlp(f"{base.rstrip('/')}/v1/traces", tuple(headers), share)

    def redis(self, name: str) -> str:
        url = urlsplit(self._values[name])
        if url.scheme not in ("redis", "rediss", "unix"):
            raise ConfigError(f"{name} must be a URL that begins with redis://, rediss:// or unix://.")
        return self._values[name]
