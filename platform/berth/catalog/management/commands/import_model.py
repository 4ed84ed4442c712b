"""manage.py import_model <organisation> <file.gguf> --name my-model [--as you@example.org]"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from berth.catalog.services import import_path
from berth.orgs.models import Organisation, User
from berth.web.errors import ApiError


class Command(BaseCommand):
    help = "Adds a GGUF file from this machine's disk to an organisation's models."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("organisation", help="its short name, as in my-org")
        parser.add_argument("file", type=Path)
        parser.add_argument("--name", required=True, help="what the model is called; a known name gets a new version")
        parser.add_argument("--licence", default="", help="for example Apache-2.0")
        parser.add_argument("--as", dest="email", default="", help="operator who does it; default: the first one")

    def handle(self, *args: Any, **options: Any) -> None:
        org = Organisation.objects.filter(slug=options["organisation"]).first()
        if org is None:
            raise CommandError(f"There is no organisation {options['organisation']}.")
        operators = User.objects.filter(is_operator=True, is_active=True)
        if options["email"]:
            operators = operators.filter(email=options["email"].lower())
        actor = operators.order_by("created_at").first()
        if actor is None:
            raise CommandError("There is no such operator. Name one with --as.")
        try:
            version = import_path(
                org, actor, str(options["file"].absolute()), options["name"], licence=options["licence"]
            )
        except ApiError as error:
            raise CommandError(error.message) from None
        self.stdout.write(
            f"{org.slug}/{version.model.name} has version {version.number}. Deploy it from the dashboard."
        )
