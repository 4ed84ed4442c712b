"""Makes the secrets of a new installation as files, and the three Secrets of deploy/kubernetes from them.

    .venv/bin/python deploy/kubernetes/make_secrets.py FOLDER --gateways 2 --database-url URL --redis-url URL --gateway-redis-url URL

What is there already stays as it is, so it can be run again for more gateways. Keep FOLDER as you keep a backup's key, away from
the cluster: it opens everything. The URLs are read from standard input, one a line, where they are not given.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "platform")]

from berth.host import secrets  # noqa: E402
from berth_gateway.contract import usage_key  # noqa: E402

NAMESPACE = "berth"
STORE_KEYS = (
    "s3_access_key_id",
    "s3_secret_access_key",
)  # of an S3 service: put them into FOLDER as files of these names


def usage_keys(folder: Path, gateways: int) -> dict[str, str]:
    """A key for each gateway by the name of its pod, derived from the master key as the control plane derives it."""
    master = bytes.fromhex(secrets.read_secret(folder, secrets.USAGE_MASTER_KEY))
    return {
        f"usage_key_{name}": usage_key(master, name).hex() for name in (f"berth-gateway-{n}" for n in range(gateways))
    }


def secret(name: str, values: dict[str, str]) -> dict[str, Any]:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in sorted(values.items())}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "type": "Opaque",
        "data": data,
    }


def made(
    folder: Path, gateways: int, database_url: str, redis_url: str, gateway_redis_url: str
) -> list[dict[str, Any]]:
    """The control plane's Secret, the gateways' common one, and that of their usage keys."""
    secrets.ensure_secrets(folder)

    def kept(*names: str) -> dict[str, str]:
        return {name: secrets.read_secret(folder, name) for name in names}

    control = kept(
        secrets.DJANGO_SECRET_KEY,
        secrets.MASTER_KEY,
        secrets.SNAPSHOT_SIGNING_KEY,
        secrets.SNAPSHOT_PUBLIC_KEY,
        secrets.USAGE_MASTER_KEY,
    )
    for name in STORE_KEYS:
        if (folder / name).exists():
            control |= kept(name)
    return [
        secret("berth-secrets", control | {"database_url": database_url, "redis_url": redis_url}),
        secret("berth-gateway", kept(secrets.SNAPSHOT_PUBLIC_KEY) | {"redis_url": gateway_redis_url}),
        secret("berth-usage-keys", usage_keys(folder, gateways)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gateways", type=int, default=2, help="how many gateways there may be")
    asked = ("database_url", "redis_url", "gateway_redis_url")
    for name in asked:
        parser.add_argument(f"--{name.replace('_', '-')}")
    given = parser.parse_args()
    urls = [getattr(given, name) or sys.stdin.readline().strip() for name in asked]
    if not all(urls):
        parser.error("an address is missing")
    objects = made(given.folder, given.gateways, *urls)
    target = given.folder / "secrets.json"
    secrets.write_private(target, json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=1) + "\n")
    sys.stdout.write(f"kubectl apply --server-side -f {target}\n")


if __name__ == "__main__":
    main()
