from __future__ import annotations

from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from berth.billing.ledger import reverse
from berth.orgs.models import Organisation
from berth.web.errors import ApiError


class Command(BaseCommand):
    help = "Take back what a usage event was billed. It stays on its statement; the open month gets the correction."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("org", help="short name of the organisation")
        parser.add_argument("event", type=UUID, help="id of the usage event")

    def handle(self, *args: Any, **options: Any) -> None:
        org = Organisation.objects.filter(slug=options["org"]).first()
        if org is None:
            raise CommandError(f'There is no organisation "{options["org"]}".')
        try:
            made = reverse(org, options["event"])
        except ApiError as error:
            raise CommandError(error.message) from None
        self.stdout.write(f"Booked {len(made)} entries in {made[0].period}.")
