"""Every environment variable that the control plane reads, in one table; docs/settings.md is tested against it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Setting:
    """`default` is what an absent variable means, in the form in which one would write it."""

    name: str
    default: str
    help: str


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "BERTH_HOME",
        ".berth",
        "Data folder: database, queue, model store, spool, logs and secrets. Created with mode 0700. The default lies in "
        "the checkout; a relative path given here begins at the current folder.",
    ),
    Setting("BERTH_PORT", "8000", "Port of the dashboard and the management API."),
    Setting("BERTH_GATEWAY_PORT", "8080", "Port of the OpenAI-compatible API."),
    Setting("BERTH_PUBLIC_URL", "", "Address of the dashboard as users see it. Empty: http://127.0.0.1:BERTH_PORT."),
    Setting(
        "BERTH_API_BASE", "", "Base URL that client applications use. Empty: http://127.0.0.1:BERTH_GATEWAY_PORT/v1."
    ),
    Setting(
        "BERTH_ALLOWED_HOSTS",
        "",
        "Further host names of the dashboard, comma-separated. The public URL's host and loopback are always allowed.",
    ),
    Setting(
        "DATABASE_URL", "", "postgresql://user:password@host:port/name. Empty: the embedded PostgreSQL in BERTH_HOME."
    ),
    Setting(
        "REDIS_URL",
        "",
        "redis:// or rediss:// URL of a Redis or Valkey server. Empty: the embedded Valkey in BERTH_HOME.",
    ),
    Setting(
        "DATABASE_URL_FILE", "", "File that holds DATABASE_URL instead, so that its password is in no environment."
    ),
    Setting("REDIS_URL_FILE", "", "File that holds REDIS_URL instead."),
    Setting("BERTH_SECRETS_DIR", "", "Folder of the secret files. Empty: BERTH_HOME/secrets."),
    Setting("BERTH_STORE_S3_BUCKET", "", "Bucket of the model store. Empty: the folder store in BERTH_HOME."),
    Setting(
        "BERTH_STORE_S3_ENDPOINT", "", "URL of the S3 service, such as https://s3.example.org. Empty: Amazon's own."
    ),
    Setting("BERTH_STORE_S3_REGION", "us-east-1", "Region of the bucket."),
    Setting("BERTH_STORE_S3_PREFIX", "", "What all keys in the bucket begin with, such as berth/."),
    Setting(
        "BERTH_STORE_QUOTA_BYTES",
        "0",
        "Storage that an organisation may use for models, in bytes, where an operator has not said otherwise. 0: no limit.",
    ),
    Setting(
        "BERTH_IMPORT_ROOTS",
        "",
        "Folders, separated by colons, from which an operator may import models by path. Empty: any folder that Berth may read.",
    ),
    Setting(
        "BERTH_OUTBOUND_PRIVATE_HOSTS",
        "",
        "host:port pairs, comma-separated, of private addresses that models may be fetched from, also over plain HTTP: a mirror "
        "of the hub or an S3 service in one's own network. Empty: public addresses over HTTPS only.",
    ),
    Setting(
        "BERTH_HUB_ENDPOINT",
        "https://huggingface.co",
        "Where models are looked up by their id; a mirror speaks the same API.",
    ),
    Setting("BERTH_DEMO", "1", "0: do not create my-org and do not deploy the sample model on the first start."),
    Setting("BERTH_PROVIDER", "local", "Where replicas run: local (this machine) or kubernetes."),
    Setting("BERTH_REGION", "", "Region of this machine, for organisations that say where their replicas may run."),
    Setting(
        "BERTH_CGROUP",
        "",
        "Folder of a cgroup (version 2) that was given to Berth, in which local replicas get limits of CPU, memory and processes.",
    ),
    Setting(
        "BERTH_KUBERNETES_FILE",
        "",
        "TOML file that lists clusters, their hardware and how to reach them. Needed when BERTH_PROVIDER is kubernetes.",
    ),
    Setting(
        "BERTH_CURRENCY", "USD", "Currency of prices and statements, ISO 4217. Cannot be changed once a price exists."
    ),
    Setting(
        "BERTH_DEBUG",
        "0",
        "1: Django's debug mode, for working on Berth itself. Refused together with a public address.",
    ),
)

_DEFAULTS = {setting.name: setting.default for setting in SETTINGS}


def read(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """The value of a declared variable. KeyError for one that is not in the table: an undocumented setting is a bug."""
    return environ.get(name, "").strip() or _DEFAULTS[name]


def read_or_file(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """The value of a declared variable, or what the file holds that NAME_FILE names. ValueError with a sentence if it cannot be read."""
    value, path = read(name, environ), read(f"{name}_FILE", environ)
    if value or not path:
        return value
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ValueError(f"{name}_FILE cannot be read: {error.strerror}.") from None


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """BERTH_HOME as an absolute path. The default lies in the checkout, wherever a command is called from; a path that a
    user gives begins, as everywhere, at the current folder."""
    given = environ.get("BERTH_HOME", "").strip()
    if given:
        return Path(given).expanduser().absolute()
    checkout = Path(__file__).resolve().parents[2]
    root = checkout if (checkout / "manage.py").exists() else Path.cwd()  # installed as a package there is no checkout
    return root / read("BERTH_HOME", {})


def read_flag(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """True for 1, true, yes, on; False for 0, false, no, off; ValueError with a sentence for anything else."""
    value = read(name, environ).lower()
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off"}:
        return False
    raise ValueError(f"{name} must be 1 or 0, not {value!r}.")
