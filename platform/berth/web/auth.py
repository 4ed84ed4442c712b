"""Who may reach a view at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.middleware.csrf import CsrfViewMiddleware
from rest_framework.authentication import SessionAuthentication
from rest_framework.permissions import BasePermission

from berth.web.errors import ApiError

if TYPE_CHECKING:  # DRF's views import this module through the settings
    from django.http import HttpRequest
    from rest_framework.request import Request
    from rest_framework.views import APIView


class Session(SessionAuthentication):
    """The dashboard's cookie. Says 401 when there is none, and `csrf_failed` in our own shape."""

    def authenticate_header(self, request: Request) -> str:
        return "Session"

    def enforce_csrf(self, request: Request) -> None:
        require_csrf_token(request)


class _CsrfCheck(CsrfViewMiddleware):
    def _reject(self, request: HttpRequest, reason: str) -> Any:
        return reason


def _unmarked(request: HttpRequest) -> Any:
    """Stands for the view: DRF's are exempt from the middleware, so it must not see theirs."""


def require_csrf_token(request: Request) -> None:
    """403 `csrf_failed` unless the request carries the page's token. Open views that sign someone in call it themselves."""
    inner = getattr(request, "_request", request)
    check = _CsrfCheck(lambda _request: None)  # type: ignore[arg-type]
    check.process_request(inner)
    if check.process_view(inner, _unmarked, (), {}):
        raise ApiError(
            "csrf_failed",
            "The page's security token is missing or old. Reload the page and try again.",
            status=403,
        )


class DenyByDefault(BasePermission):
    """A view that names no permission of its own is closed. A test walks all routes to see that none was forgotten."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return False


class SignedIn(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        return bool(request.user and request.user.is_authenticated and request.user.is_active)


class Operator(BasePermission):
    """The platform's own pages. To everyone else they do not exist."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return bool(SignedIn().has_permission(request, view) and getattr(request.user, "is_operator", False))


class Open(BasePermission):
    """Answers without a session. Named so that every open view can be found; a test lists them."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return True
