"""The settings of a gateway, each an environment variable: the list that the documentation is checked against. Data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable. `default` as text; None: it must be given."""

    name: str
    default: str | None
    help: str


SETTINGS: tuple[Setting, ...] = (
    Setting("BERTH_GATEWAY_NAME", "gateway", "Name of this gateway process in reports and usage batches; unique."),
    Setting(
        "BERTH_GATEWAY_BIND",
        "127.0.0.1",
        "Address to listen on. Anything but loopback needs a certificate or BERTH_BEHIND_TLS_PROXY=1.",
    ),
    Setting("BERTH_GATEWAY_PORT", "8080", "Port to listen on."),
    Setting(
        "BERTH_GATEWAY_ADMIN_PORT",
        "",
        "Port on 127.0.0.1 for /metrics alone. Empty: /metrics is answered on the main port to loopback peers, "
        "unless BERTH_BEHIND_TLS_PROXY is set.",
    ),
    Setting("BERTH_GATEWAY_REUSE_PORT", "0", "1: several gateway processes share the port (SO_REUSEPORT)."),
    Setting("BERTH_GATEWAY_WORKERS", "1", "Processes that share the port, started anew when one dies; one per core."),
    Setting(
        "BERTH_GATEWAY_DIR",
        None,
        "Folder for the spool and the copy of the snapshot; one per gateway. Several workers have a folder each in it.",
    ),
    Setting(
        "BERTH_BEHIND_TLS_PROXY", "0", "1: a proxy in front of the gateway ends TLS, so it may listen on any address."
    ),
    Setting(
        "BERTH_GATEWAY_TRUSTED_PROXIES",
        "",
        "Networks of the proxies in front, in CIDR form, separated by commas. Only from there X-Forwarded-For is believed, counted "
        "from the right; it matters for keys that may be used from certain networks only.",
    ),
    Setting(
        "BERTH_GATEWAY_TLS_CERTIFICATE_FILE",
        "",
        "PEM file with the certificate chain: the gateway then speaks TLS itself. Read anew when it changes.",
    ),
    Setting("BERTH_GATEWAY_TLS_KEY_FILE", "", "PEM file with the certificate's private key."),
    Setting(
        "BERTH_GATEWAY_SNAPSHOT_FILE",
        "",
        "JSON file with keys and models for a gateway that runs alone, without Valkey. Read anew when it changes.",
    ),
    Setting("REDIS_URL", None, "Valkey: redis://user:password@host:port/0."),
    Setting("REDIS_URL_FILE", "", "File that holds REDIS_URL instead, so that its password is in no environment."),
    Setting(
        "BERTH_SNAPSHOT_PUBLIC_KEY_FILE",
        None,
        "File with the Ed25519 public key that snapshots are signed with (PEM or raw).",
    ),
    Setting(
        "BERTH_USAGE_KEY_FILE", None, "File with this gateway's 32-byte key for usage batches (raw or hexadecimal)."
    ),
    Setting(
        "BERTH_SNAPSHOT_MAX_AGE_SECONDS",
        "86400",
        "How long keys keep working after Valkey last confirmed the snapshot; then 503.",
    ),
    Setting("BERTH_MAX_BODY_BYTES", "33554432", "Largest request body."),
    Setting("BERTH_GATEWAY_IDLE_SECONDS", "75", "How long a connection may wait between requests."),
    Setting("BERTH_GATEWAY_HEAD_SECONDS", "10", "How long a request's head may take."),
    Setting("BERTH_GATEWAY_FIRST_BYTE_SECONDS", "300", "How long an engine may take to its first token; then 504."),
    Setting("BERTH_GATEWAY_TOTAL_SECONDS", "3600", "How long a request may take in all; then 504, or an error event."),
    Setting(
        "BERTH_GATEWAY_KEEPALIVE_SECONDS",
        "15",
        "After this much silence a stream gets a comment, so that proxies keep it.",
    ),
    Setting("BERTH_GATEWAY_QUEUE_LENGTH", "512", "Requests of one deployment that may wait for a replica; then 503."),
    Setting("BERTH_GATEWAY_QUEUE_SECONDS", "60", "How long a request may wait while all replicas are busy; then 503."),
    Setting("BERTH_GATEWAY_DRAIN_SECONDS", "30", "How long running requests may go on after SIGTERM."),
    Setting(
        "BERTH_OTEL_EXPORTER_OTLP_ENDPOINT",
        "",
        "Base URL of an OpenTelemetry collector (OTLP over HTTP, JSON); traces go to /v1/traces there. Empty: "
        "OTEL_EXPORTER_OTLP_ENDPOINT, and without that no traces.",
    ),
    Setting(
        "BERTH_OTEL_EXPORTER_OTLP_HEADERS",
        "",
        "Headers for the collector, as name=value, separated by commas. Empty: OTEL_EXPORTER_OTLP_HEADERS.",
    ),
    Setting(
        "BERTH_OTEL_SAMPLE", "1", "Share of requests that are traced, 0 to 1, of those that no caller decides for."
    ),
    Setting("BERTH_GATEWAY_LOG_REQUESTS", "1", "1: one log line for each request, without content."),
)
