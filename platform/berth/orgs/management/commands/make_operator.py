from __future__ import annotations

import secrets
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from berth.orgs.models import User


class Command(BaseCommand):
    help = "Make an operator, with a password that is shown once and is to be changed. One machine has one from its first start."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("email", help="address to sign in with")

    def handle(self, *args: Any, **options: Any) -> None:
        email = options["email"].strip()
        if "@" not in email:
            raise CommandError(f'"{email}" is no e-mail address.')
        if User.objects.filter(email__iexact=email).exists():
            raise CommandError(f"There is a user {email} already.")
        password = secrets.token_urlsafe(12)
        User.objects.create_user(email, password, name="Operator", is_operator=True, password_is_temporary=True)
        self.stdout.write(password)
