from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from berth.metering.ingest import retry_rejected
from berth.metering.models import RejectedBatch


class Command(BaseCommand):
    help = "Read rejected usage batches again, after what was wrong with them has been put right."

    def handle(self, *args: Any, **options: Any) -> None:
        done = retry_rejected()
        left = RejectedBatch.objects.filter(resolved_at=None).count()
        self.stdout.write(
            f"Resolved {done.batches} batches with {done.events} new usage events; {left} remain rejected."
        )
