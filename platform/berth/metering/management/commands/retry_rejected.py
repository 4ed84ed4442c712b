from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from berth.metering.ingest import release_held, retry_rejected
from berth.metering.models import RejectedBatch


class Command(BaseCommand):
    help = "Read rejected usage batches, and rate held usage events, again: after what was wrong has been put right."

    def handle(self, *args: Any, **options: Any) -> None:
        done = retry_rejected()
        released = release_held()
        left = RejectedBatch.objects.filter(resolved_at=None).count()
        self.stdout.write(
            f"Resolved {done.batches} batches with {done.events} new usage events; {left} remain rejected. "
            f"{released} held events will be rated again."
        )
