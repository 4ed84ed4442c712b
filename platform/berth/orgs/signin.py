"""Sign-in, sign-out, confirming and changing one's password: django-allauth's headless views at their own addresses, with our error shape.

Only what Berth offers is mounted; allauth's other views (sign-up, mail management, password reset) do not exist here. The views
keep what allauth is good at: the same answer and the same hashing work for unknown addresses, limits per account and address,
a new session key at sign-in, and an end of all other sessions when the password changes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from allauth.headless.account.views import ChangePasswordView, LoginView, ReauthenticateView, SessionView
from allauth.headless.constants import Client
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.urls import path

from berth.web.errors import body

# allauth's codes, in our words: (status, code, message). Anything else of its form errors is `invalid` with its own sentence.
_KNOWN = {
    "email_password_mismatch": (
        400,
        "sign_in.wrong",
        "The e-mail address or the password is wrong. Check both and try again.",
    ),
    "too_many_login_attempts": (
        429,
        "throttled",
        "Too many failed tries for this account. Wait a quarter of an hour, then try again.",
    ),
    "incorrect_password": (400, "password.wrong", "The current password is wrong."),
    "enter_current_password": (400, "password.wrong", "The current password is wrong."),
}
_BY_STATUS = {
    400: ("bad_request", "The body is not valid JSON, or not an object. Check it and send it again."),
    401: ("signed_out", "You are not signed in, or your session has ended. Sign in and try again."),
    403: ("permission.denied", "You may not do this."),
    405: ("method_not_allowed", "This address does not answer to that method."),
    409: ("sign_in.already", "You are signed in already. Sign out first to change the user."),
    429: ("throttled", "Too many tries. Wait a minute, then try again."),
}

View = Callable[..., HttpResponseBase]


def _ours(view: View, fields: frozenset[str] = frozenset()) -> View:
    """Wraps one of allauth's views: JSON only, known fields only, errors in our shape, an ended session as 204."""

    @functools.wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method not in {"GET", "HEAD"} and (refusal := _refuse(request, fields)) is not None:
            return refusal
        response = view(request, *args, **kwargs)
        if request.method == "DELETE" and response.status_code == HTTPStatus.UNAUTHORIZED:
            return HttpResponse(status=204)
        return response if response.status_code < 400 else _translate(request, response)

    return wrapped


def _refuse(request: HttpRequest, fields: frozenset[str]) -> JsonResponse | None:
    if request.body and request.content_type != "application/json":
        message = "Send the body as JSON, with Content-Type: application/json."
        return JsonResponse(body(request, "unsupported_media_type", message), status=415)
    try:
        sent = json.loads(request.body or b"{}")
        json.dumps(
            sent, ensure_ascii=False
        ).encode()  # half of a surrogate pair is no text: it can be neither hashed nor kept
    except (ValueError, RecursionError):
        sent = None
    if not isinstance(sent, dict):
        return JsonResponse(body(request, *_BY_STATUS[400]), status=400)
    unknown = next((name for name in sent if name not in fields), None)
    if unknown is not None:
        message = "This request has a field that is not known here. Remove it or check its spelling."
        return JsonResponse(body(request, "unknown_field", message, field=unknown[:80]), status=400)
    return None


def _translate(request: HttpRequest, response: HttpResponseBase) -> JsonResponse:
    status, field = response.status_code, None
    code, message = _BY_STATUS.get(status, ("bad_request", "The request could not be understood."))
    errors = _errors(response)
    if errors:
        field, code, message = errors[0].get("param"), "invalid", str(errors[0].get("message", message))
        if (known := _KNOWN.get(errors[0].get("code", ""))) is not None:
            status, code, message = known
    answer = JsonResponse(body(request, code, message, field=field), status=status)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        answer.headers["Retry-After"] = "900" if errors else "60"
    if status == HTTPStatus.UNAUTHORIZED:
        answer.headers["WWW-Authenticate"] = "Session"
    return answer


def _errors(response: HttpResponseBase) -> list[dict[str, Any]]:
    try:
        return list(json.loads(getattr(response, "content", b"")).get("errors") or [])
    except (ValueError, AttributeError):
        return []


urlpatterns = [
    path(
        "browser/v1/auth/login",
        _ours(LoginView.as_api_view(client=Client.BROWSER), frozenset({"email", "password"})),
        name="sign_in",
    ),
    path(
        "browser/v1/auth/reauthenticate",
        _ours(ReauthenticateView.as_api_view(client=Client.BROWSER), frozenset({"password"})),
        name="confirm_password",
    ),
    path("browser/v1/auth/session", _ours(SessionView.as_api_view(client=Client.BROWSER)), name="session"),
    path(
        "browser/v1/account/password/change",
        _ours(ChangePasswordView.as_api_view(client=Client.BROWSER), frozenset({"current_password", "new_password"})),
        name="change_password",
    ),
]
