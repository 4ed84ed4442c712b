"""The one table of refusals on the OpenAI surface, and the bytes they become.

A refusal is `{"error": {"message", "type", "param", "code"}}` with all four keys. Its text is always ours: nothing an
engine said, no part of a key, no value of a request appears in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

INVALID = "invalid_request_error"
SERVER = "server_error"


@dataclass(frozen=True, slots=True)
class Kind:
    """Status and OpenAI `type` of an error code, and what a client should do about it.

    `retry_after`: seconds, when waiting helps. `final`: waiting cannot cure it, so clients are told not to retry.
    """

    status: int
    type: str = INVALID
    retry_after: int | None = None
    final: bool = False
    close: bool = False


KINDS: dict[str, Kind] = {
    "bad_request": Kind(400, close=True),
    "headers_too_large": Kind(431, close=True),
    "request_too_large": Kind(413, close=True),
    "slow_request": Kind(408, close=True),
    "key_in_url": Kind(400),
    "invalid_api_key": Kind(401),
    "api_key_expired": Kind(401),
    "insufficient_permissions": Kind(403),
    "ip_not_authorized": Kind(403, final=True),
    "model_not_allowed": Kind(403),
    "model_not_found": Kind(404),
    "unknown_url": Kind(404),
    "method_not_allowed": Kind(405),
    "deployment_paused": Kind(403, final=True),
    "organization_suspended": Kind(403, final=True),
    "key_held": Kind(403, final=True),
    "rate_limit_exceeded": Kind(429, "requests"),
    "insufficient_quota": Kind(429, "insufficient_quota", final=True),
    "model_loading": Kind(503, SERVER, retry_after=5),
    "overloaded": Kind(503, SERVER, retry_after=2),
    "upstream_unavailable": Kind(503, SERVER, retry_after=1),
    "upstream_error": Kind(503, SERVER, retry_after=1),
    "service_unavailable": Kind(503, SERVER, retry_after=1),
    "request_timeout": Kind(504, "timeout", final=True),
    "context_length_exceeded": Kind(400),
    "invalid_json": Kind(400),
    "invalid_type": Kind(400),
    "invalid_value": Kind(400),
    "missing_required_parameter": Kind(400),
    "unknown_parameter": Kind(400),
    "unsupported_parameter": Kind(400),
    "unsupported_value": Kind(400),
    "unsupported_endpoint": Kind(404),
    "unsupported_model": Kind(400),
    "previous_response_not_found": Kind(400),
}

REASONS = {
    100: "Continue",
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


class Refusal(Exception):
    """A request that ends with an error answer. Raised before the first byte of an answer has gone out."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        allow: str | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(code)
        kind = KINDS[code]
        self.code = code
        self.message = message
        self.param = param
        self.status = kind.status
        self.type = kind.type
        self.retry_after = kind.retry_after if retry_after is None else max(1, min(60, retry_after))
        self.final = kind.final
        self.allow = allow
        self.close = close or kind.close

    def body(self) -> bytes:
        return error_body(self.message, self.type, self.param, self.code)

    def headers(self) -> bytes:
        """Lines beyond the common ones, each ended by CRLF."""
        lines = ""
        if self.status == 401:
            lines += "www-authenticate: Bearer\r\n"
        if self.allow is not None:
            lines += f"allow: {self.allow}\r\n"
        if self.final:
            lines += "x-should-retry: false\r\n"
        elif self.retry_after is not None and self.status == 503:
            lines += f"retry-after: {self.retry_after}\r\nx-should-retry: true\r\n"
        return lines.encode()


def error_body(message: str, type_: str, param: str | None, code: str) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": type_, "param": param, "code": code}})


def bad_key() -> Refusal:
    """Constant: the same whether the key is absent, malformed, unknown or revoked."""
    return Refusal("invalid_api_key", "Incorrect API key provided. Find your keys in the dashboard.")


def unknown_model(name: str) -> Refusal:
    shown = f"'{name}'" if len(name) <= 128 and name.isprintable() else "you named"
    return Refusal(
        "model_not_found", f"The model {shown} does not exist or you do not have access to it.", param="model"
    )


def not_ready(message: str) -> Refusal:
    """A fault of ours, never of the key: 503, whatever went wrong."""
    return Refusal("service_unavailable", message)
