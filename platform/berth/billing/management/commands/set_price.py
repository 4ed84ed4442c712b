from __future__ import annotations

from argparse import ArgumentParser
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from berth.billing.prices import set_price
from berth.billing.rating import EXACT, Prices
from berth.orgs.models import Organisation
from berth.web.errors import ApiError

MILLION = Decimal(1_000_000)


class Command(BaseCommand):
    help = (
        "Set prices per million tokens, in BERTH_CURRENCY: for the whole platform, an organisation, or one of its "
        "deployments. Usage before --from keeps its price."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--input", required=True, help="prompt tokens that were not cached, e.g. 0.15")
        parser.add_argument("--cached", required=True, help="prompt tokens from the cache")
        parser.add_argument("--output", required=True, help="completion tokens")
        parser.add_argument("--org", help="short name of an organisation")
        parser.add_argument("--deployment", help="name of a deployment of that organisation")
        parser.add_argument("--from", dest="valid_from", help="e.g. 2027-01-01T00:00:00Z; else in one to two minutes")

    def handle(self, *args: Any, **options: Any) -> None:
        org = None
        if options["org"] is not None:
            org = Organisation.objects.filter(slug=options["org"]).first()
            if org is None:
                raise CommandError(f'There is no organisation "{options["org"]}".')
        try:
            prices = Prices(*(_per_token(options[name]) for name in ("input", "cached", "output")))
            made = set_price(
                prices, org=org, deployment=options["deployment"], valid_from=_instant(options["valid_from"])
            )
        except ApiError as error:
            raise CommandError(error.message) from None
        except ValueError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"Price version {made.number} is valid from {made.valid_from.isoformat()}.")


def _per_token(text: str) -> Decimal:
    try:
        return EXACT.divide(Decimal(text), MILLION)
    except (InvalidOperation, ArithmeticError):
        raise ValueError(f'"{text}" is not a price. Write digits, as in 0.15.') from None


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
