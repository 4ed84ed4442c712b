"""Acts that need the password lately: whoever finds a browser signed in cannot do them.

Signing in counts, and so does confirming the password (`signin`); both are written down in the session by django-allauth. A session that
began otherwise, by accepting an invitation, has confirmed nothing yet.
"""

from __future__ import annotations

import time

from django.conf import settings
from django.http import HttpRequest

from berth.web.errors import ApiError

_RECORDS = "account_authentication_methods"  # django-allauth's: [{"method": ..., "at": Unix seconds}, ...]


class NotRecent(ApiError):
    """The session is good, but its password was last given too long ago."""

    status = 403

    def __init__(self) -> None:
        super().__init__(
            "sign_in.not_recent",
            "This needs your password once more. Confirm it, then try again.",
            params={"seconds": settings.ACCOUNT_REAUTHENTICATION_TIMEOUT},
        )


def confirmed_at(request: HttpRequest) -> float | None:
    """When this session's user last gave the password, in Unix seconds."""
    records = request.session.get(_RECORDS) or []
    return max((float(each["at"]) for each in records if each.get("method") == "password"), default=None)


def require_recent(request: HttpRequest) -> None:
    """Raises NotRecent."""
    at = confirmed_at(request)
    if at is None or not 0 <= time.time() - at < settings.ACCOUNT_REAUTHENTICATION_TIMEOUT:
        raise NotRecent
