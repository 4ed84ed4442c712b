from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from berth.deployments.corrections import factors, ignore, ignored_keys, learnt, restore
from berth.planner.learning import TPOT, TTFT, Key


class Command(BaseCommand):
    help = (
        "What measured deployments taught the planner: list it, set a factor aside, or use it again. A factor multiplies predicted "
        "times. Named as ENGINE/FORMAT/TIER/METRIC, the metric tpot or ttft."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        act = parser.add_mutually_exclusive_group(required=True)
        act.add_argument("--list", action="store_true")
        act.add_argument("--ignore", metavar="KEY", help="for example llamacpp/Q4_1/cpu-local/tpot")
        act.add_argument("--restore", metavar="KEY")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["ignore"]:
            made = ignore(_key(options["ignore"]))
            self.stdout.write("Plans are made without it from now on." if made else "It was set aside already.")
        elif options["restore"]:
            if not restore(_key(options["restore"])):
                raise CommandError("This is not set aside. --list shows what is.")
            self.stdout.write("Plans use it again.")
        else:
            self._list()

    def _list(self) -> None:
        used, known, ignored = factors(), learnt(), ignored_keys()
        for key in sorted(known.keys() | ignored):
            factor = known.get(key)
            what = (
                f"x{factor.value:.3f} (measured x{factor.raw:.3f}, {factor.deployments} deployments, n={factor.count}, "
                f"{factor.left_out} left out)"
                if factor
                else "nothing learnt"
            )
            self.stdout.write(f"{'/'.join(key)}  {what}  {'used' if key in used else 'ignored'}")
        if not known and not ignored:
            self.stdout.write("Nothing is learnt yet.")


def _key(text: str) -> Key:
    parts = text.split("/")
    if len(parts) != 4 or not all(parts) or parts[3] not in (TPOT, TTFT):
        raise CommandError(
            f"A factor is named ENGINE/FORMAT/TIER/METRIC, the metric {TPOT} or {TTFT}. --list shows them."
        )
    engine, scheme, hardware, metric = parts
    return (engine, scheme, hardware, metric)
