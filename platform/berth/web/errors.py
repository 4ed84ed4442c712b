"""The management API's one error shape: `{"error": {code, message, params, field, request_id}}`.

`code` is stable and what the dashboard translates; `message` is English: what happened, why, and what to do next.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from redis.exceptions import ConnectionError as ValkeyConnectionError
from redis.exceptions import TimeoutError as ValkeyTimeoutError
from rest_framework import exceptions
from rest_framework.response import Response

from berth.web.request_id import request_id

log = logging.getLogger(__name__)

# A service of ours is away for the moment: 503, never 500, and never the fault of whoever asks.
AWAY = (OperationalError, InterfaceError, ValkeyConnectionError, ValkeyTimeoutError)


class ApiError(Exception):
    """Raise it from a service: bad input or a state that forbids the act. `params` are numbers and ids for translation."""

    status = 400

    def __init__(
        self,
        code: str,
        message: str,
        *,
        field: str | None = None,
        params: dict[str, Any] | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(code)
        self.code, self.message, self.field, self.params = code, message, field, params or {}
        if status is not None:
            self.status = status


class NotFound(ApiError):
    """Also for what belongs to another organisation: unknown and foreign look the same."""

    status = 404

    def __init__(self, what: str) -> None:
        super().__init__(
            "not_found", f"There is no such {what}, or you may not see it. Check the address.", params={"what": what}
        )


class Conflict(ApiError):
    status = 409


class Forbidden(ApiError):
    status = 403

    def __init__(self, action: str) -> None:
        message = f'This needs the permission "{action}". An admin of this organisation can give it to you.'
        super().__init__("permission.denied", message, params={"action": action})


def body(
    request: object, code: str, message: str, *, field: str | None = None, params: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "error": {
            "code": code,
            "message": message,
            "params": params or {},
            "field": field,
            "request_id": request_id(request),
        }
    }


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """For DRF. None lets Django's 500 path take over (`server_error` below)."""
    request = context.get("request")
    match error:
        case ApiError():
            content = body(request, error.code, error.message, field=error.field, params=error.params)
            return Response(content, status=error.status)
        case Http404():
            return exception_handler(NotFound("page"), context)
        case PermissionDenied():
            return Response(body(request, "permission.denied", "You may not do this."), status=403)
        case exceptions.ValidationError():
            field, message = _first(error.detail)
            return Response(body(request, "invalid", message, field=field), status=400)
        case exceptions.APIException():
            return _drf(error, request)
        case _ if isinstance(error, AWAY):
            return unavailable(request, error)
    return None


def unavailable(request: object, error: BaseException) -> Response:
    return Response(_away(request, error), status=503, headers={"Retry-After": "2"})


def _away(request: object, error: BaseException) -> dict[str, Any]:
    service = "database" if isinstance(error, OperationalError | InterfaceError) else "broker"
    log.error(
        "service_unavailable",
        extra={"request_id": request_id(request), "kind": service, "reason": type(error).__name__},
    )
    what = {"database": "The database", "broker": "The message broker (Valkey)"}[service]
    message = f"{what} does not answer just now. Deployed models keep serving; try again in a few seconds."
    return body(request, "unavailable", message, params={"service": service})


_CODES = {
    "not_authenticated": "signed_out",
    "authentication_failed": "signed_out",
    "permission_denied": "permission.denied",
}
_MESSAGES = {
    "signed_out": "You are not signed in, or your session has ended. Sign in and try again.",
    "permission.denied": "You may not do this.",
    "parse_error": "The body is not valid JSON. Check it and send it again.",
    "unsupported_media_type": "Send the body as JSON, with Content-Type: application/json.",
    "throttled": "Too many tries. Wait as long as the Retry-After header says, then try again.",
}


def _drf(error: exceptions.APIException, request: object) -> Response:
    code = _CODES.get(error.default_code, error.default_code)
    headers: dict[str, str] = {}
    if error.status_code == 401:
        headers["WWW-Authenticate"] = "Session"
    if (wait := getattr(error, "wait", None)) is not None:
        headers["Retry-After"] = str(int(wait) + 1)
    message = _MESSAGES.get(code, str(error.detail))
    return Response(body(request, code, message), status=error.status_code, headers=headers)


def _first(detail: Any, field: str | None = None) -> tuple[str | None, str]:
    """The first problem of DRF's nested detail, with the dotted path of its field."""
    if isinstance(detail, dict):
        key, value = next(iter(detail.items()))
        path = key if field is None else f"{field}.{key}"
        return _first(value, None if key == "non_field_errors" else path)
    if isinstance(detail, list):
        return _first(next((item for item in detail if item), "This value is not valid."), field)
    return field, str(detail)


def _page(request: HttpRequest, status: int, code: str, message: str) -> JsonResponse:
    return JsonResponse(body(request, code, message), status=status)


def bad_request(request: HttpRequest, exception: Exception) -> JsonResponse:
    return _page(request, 400, "bad_request", "The request could not be understood. Check the address and the body.")


def permission_denied(request: HttpRequest, exception: Exception) -> JsonResponse:
    return _page(request, 403, "permission.denied", "You may not do this.")


def not_found(request: HttpRequest, exception: Exception) -> JsonResponse:
    return _page(request, 404, "not_found", "There is nothing at this address. Check it, or start from the dashboard.")


def server_error(request: HttpRequest) -> JsonResponse:
    """Also for what breaks outside of DRF's views, such as the session's look-up in a middleware."""
    error = sys.exc_info()[1]
    if isinstance(error, AWAY):
        return JsonResponse(_away(request, error), status=503, headers={"Retry-After": "2"})
    message = (
        "Something went wrong on our side and was logged. Try again; if it stays, tell your operator the request id."
    )
    return _page(request, 500, "internal", message)


def csrf_failure(request: HttpRequest, reason: str = "") -> JsonResponse:
    return _page(
        request, 403, "csrf_failed", "The page's security token is missing or old. Reload the page and try again."
    )
