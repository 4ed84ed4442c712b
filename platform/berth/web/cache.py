"""What lies in the cache is JSON: Django's own choice, pickle, would make writing to Valkey as good as running code here."""

from __future__ import annotations

import json
from typing import Any


class JsonSerializer:
    """For RedisCache. Numbers stay bare, so that counters can be raised in place."""

    def dumps(self, value: Any) -> bytes | int:
        if type(value) is int:
            return value
        return json.dumps(value, separators=(",", ":")).encode()

    def loads(self, data: bytes) -> Any:
        return json.loads(data)
