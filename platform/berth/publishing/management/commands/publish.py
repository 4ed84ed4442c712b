from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from berth.publishing.services import publish


class Command(BaseCommand):
    help = "Publish a new snapshot to the gateways now, whether or not anything has changed."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"Published version {publish(force=True)}.")
