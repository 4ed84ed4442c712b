"""Limits on open doors, counted in Valkey. The address is the peer's: a forged X-Forwarded-For moves nothing (threat G11)."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView


class AddressThrottle(SimpleRateThrottle):
    """Twenty calls a minute from one address, for views that answer to strangers."""

    scope = "address"
    rate = "20/min"

    def get_cache_key(self, request: Request, view: APIView) -> str:
        return self.cache_format % {
            "scope": f"{self.scope}:{type(view).__name__}",
            "ident": request.META.get("REMOTE_ADDR", ""),
        }
