"""The two ways of speaking on one port: OpenAI's, and Anthropic's on its own paths. Differences of errors and headers; pure."""

from __future__ import annotations

import msgspec

from berth_gateway.errors import Refusal
from berth_gateway.head import RequestHead

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def is_anthropic(head: RequestHead | None) -> bool:
    """Whether a request expects Anthropic's shapes: by its path, or on /v1/models by the header its clients send."""
    if head is None:
        return False
    target = head.target
    return target.startswith("/v1/messages") or (head.anthropic and target.startswith("/v1/models"))


def error_answer(refusal: Refusal, head: RequestHead | None, request_id: str) -> tuple[int, bytes]:
    """Status and body of an error answer."""
    if not is_anthropic(head):
        return refusal.status, refusal.body()
    return anthropic_status(refusal), anthropic_body(refusal, request_id)


def anthropic_status(refusal: Refusal) -> int:
    """As OpenAI's, but for a budget that is used up: its clients never repeat a 402."""
    return 402 if refusal.code == "insufficient_quota" else refusal.status


def anthropic_body(refusal: Refusal, request_id: str) -> bytes:
    status = anthropic_status(refusal)
    type_ = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return msgspec.json.encode(
        {"type": "error", "error": {"type": type_, "message": refusal.message}, "request_id": request_id}
    )


def lines(head: RequestHead | None, request_id: str) -> bytes:
    """Header lines of every answer, each ended by CRLF."""
    return b"request-id: %b\r\n" % request_id.encode() if is_anthropic(head) else b""
