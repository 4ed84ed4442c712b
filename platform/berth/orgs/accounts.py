"""How sign-in behaves (django-allauth)."""

from __future__ import annotations

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest

from berth.orgs.models import User


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """People join by invitation; the first operator is made at the first start."""
        return False

    def set_password(self, user: User, password: str) -> None:
        """A password that its user chose is no longer the one that Berth made."""
        user.password_is_temporary = False
        super().set_password(user, password)
