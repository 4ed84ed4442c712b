from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from berth.orgs.limits import NAMES
from berth.orgs.services import set_limits
from berth.web.errors import ApiError


class Command(BaseCommand):
    help = "Limit how fast an organisation, or one of its members, may use its models. What is not named stays; 'none' lifts a limit."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("org", help="short name of the organisation")
        parser.add_argument("--member", help="e-mail address of a member: limits all keys of that member together")
        parser.add_argument("--rpm", help="requests in any minute")
        parser.add_argument("--tpm", help="tokens in any minute")
        parser.add_argument("--concurrency", help="requests at one moment")

    def handle(self, *args: Any, **options: Any) -> None:
        limits = {name: _limit(options[name]) for name in NAMES if options[name] is not None}
        try:
            found = set_limits(options["org"], limits, member=options["member"])
        except ApiError as error:
            raise CommandError(error.message) from None
        shown = ", ".join(f"{name} {'none' if value is None else value}" for name, value in found.items())
        self.stdout.write(f"{options['member'] or options['org']}: {shown}")


def _limit(text: str) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit()):
        raise CommandError(f'"{text}" is not a limit. Write a whole number of at least 1, or none.')
    return int(text)
