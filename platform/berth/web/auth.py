"""Who may reach a view at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission

if TYPE_CHECKING:  # DRF's views import this module through the settings
    from rest_framework.request import Request
    from rest_framework.views import APIView


class DenyByDefault(BasePermission):
    """A view that names no permission of its own is closed. A test walks all routes to see that none was forgotten."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return False


class SignedIn(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        return bool(request.user and request.user.is_authenticated and request.user.is_active)
