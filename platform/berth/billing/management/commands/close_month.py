from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from berth.billing.statements import close_month
from berth.orgs.models import Organisation
from berth.web.errors import ApiError


class Command(BaseCommand):
    help = "Close an organisation's month at once instead of 48 hours after its end. Closing again changes nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("org", help="short name of the organisation")
        parser.add_argument("period", help="e.g. 2026-11")

    def handle(self, *args: Any, **options: Any) -> None:
        org = Organisation.objects.filter(slug=options["org"]).first()
        if org is None:
            raise CommandError(f'There is no organisation "{options["org"]}".')
        try:
            made = close_month(org, options["period"])
        except ApiError as error:
            raise CommandError(error.message) from None
        self.stdout.write(
            f"{made.period} is closed: {made.total_micro} millionths of 1 {made.currency}, {made.content_hash}."
        )
