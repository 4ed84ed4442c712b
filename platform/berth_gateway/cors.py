"""Which browser origins may call, and the header lines that tell browsers so. Off unless an organisation lists the origin."""

from __future__ import annotations

from berth_gateway.admit import Caller
from berth_gateway.snapshot import View

PREFLIGHT = (
    b"access-control-allow-methods: GET, POST\r\n"
    b"access-control-allow-headers: authorization, content-type, x-api-key, x-request-id, openai-organization, openai-project, "
    b"openai-beta, x-stainless-arch, x-stainless-async, x-stainless-custom-poll-interval, x-stainless-helper-method, "
    b"x-stainless-lang, x-stainless-os, x-stainless-package-version, x-stainless-poll-helper, x-stainless-read-timeout, "
    b"x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout, anthropic-version, "
    b"anthropic-beta\r\naccess-control-max-age: 600\r\n"
)
_EXPOSED = (
    b"x-request-id, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, retry-after"
)


def is_listed(origin: str | None, view: View | None, caller: Caller | None) -> bool:
    """Whether the caller's organisation lists the origin; before there is a caller, whether any does."""
    if origin is None or view is None:
        return False
    return origin in (caller.org.origins if caller is not None else view.origins)


def lines(origin: str, *, listed: bool) -> bytes:
    """Header lines of any answer to a request with an Origin, errors too, or browsers hide them."""
    if not listed:
        return b"vary: Origin\r\n"
    return b"vary: Origin\r\naccess-control-allow-origin: %b\r\naccess-control-expose-headers: %b\r\n" % (
        origin.encode("latin-1"),
        _EXPOSED,
    )
