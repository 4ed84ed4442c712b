from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from berth.billing.spending import rebuild


class Command(BaseCommand):
    help = "Sum up anew, from the rated usage events, what budgets are counted by. Rating waits meanwhile."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"{rebuild()} sums were made.")
