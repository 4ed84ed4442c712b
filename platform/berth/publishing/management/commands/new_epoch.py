from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from berth.publishing.services import new_epoch


class Command(BaseCommand):
    help = "Begin a new epoch of snapshots. Run it once after restoring a database backup, before users return."

    def handle(self, *args: Any, **options: Any) -> None:
        publication = new_epoch()
        self.stdout.write(f"Epoch {publication.epoch} has begun with version {publication.version}.")
