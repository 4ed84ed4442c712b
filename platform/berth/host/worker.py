"""All background work of one machine in one process: a Celery worker with threads, and the beat in one of them.

One process instead of three (workers for `deployments` and for the rest, and a beat) saves 200 MB and, on two cores,
three seconds of every start. Threads suit the tasks: they wait for PostgreSQL, Valkey and the provider, and compute
little. A slow task holds one of THREADS threads, never a queue. A cluster runs `celery worker` and `celery beat` apart.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import cast

import django
from celery.beat import EmbeddedService

QUEUES = ("deployments", "metering", "imports", "default")
THREADS = 8


def main(schedule: Path) -> int:
    """`schedule` is the file in which beat remembers when it last ran what."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "berth.settings")
    django.setup()
    from berth.celery import app

    beat = cast(threading.Thread, EmbeddedService(app, thread=True, schedule_filename=str(schedule)))
    worker = app.Worker(
        pool="threads",
        concurrency=THREADS,
        queues=",".join(QUEUES),
        loglevel="INFO",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        hostname="berth@localhost",
    )
    # Making the worker set up logging; without this every tick of the beat would be three lines.
    for chatty in ("celery.app.trace", "celery.worker.strategy", "celery.beat"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    beat.start()
    try:
        worker.start()
    finally:
        beat.stop()  # type: ignore[attr-defined]
    return int(worker.exitcode or 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
