"""This process's connection to Valkey, for what is exchanged with gateways. Celery and the cache keep their own."""

from __future__ import annotations

from functools import cache

import redis
from django.conf import settings

UNAVAILABLE = (redis.ConnectionError, redis.TimeoutError)  # worth trying again later; anything else is a fault


@cache
def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_connect_timeout=1, socket_timeout=5, health_check_interval=30)


def client() -> redis.Redis:
    """A pooled, thread-safe client. Answers are bytes."""
    return _client(settings.REDIS_URL)
