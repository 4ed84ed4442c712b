"""Secrets of replicas, derived so that nothing has to store them."""

from __future__ import annotations

import base64
import hashlib
import hmac

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

MASTER_KEY = "master_key"


def replica_secret(name: str) -> str:
    """The bearer token that the replica of this name alone accepts: the same wherever and whenever it is asked for."""
    path = settings.SECRETS_DIR / MASTER_KEY
    if not path.is_file():
        raise ImproperlyConfigured(
            f"The master key is missing at {path}. It is made on the first start; restore it from your backup."
        )
    master = bytes.fromhex(path.read_text().strip())
    digest = hmac.new(master, b"berth replica v1:" + name.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
