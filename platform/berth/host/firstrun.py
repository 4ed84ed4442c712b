"""Brings the database up to date and, on the very first start, makes an organisation with a model that answers.

Runs as a program of its own under the supervisor (`python -m berth.host.firstrun`), so that the supervisor itself never
loads Django. Progress goes to standard output, a JSON object a line: `{"step": title, "usual": seconds}` begins a step,
`{"done": text}` ends it, `{"migrated": true}` says that the other programs may start, `{"error": text}` is the last line
of a failure. Everything may be interrupted at any point and done again.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any

import django

OPERATOR_EMAIL = "operator@localhost"
ORGANISATION = "my-org"
MODEL = "smollm2-135m-instruct"
KEY_NAME = "First key"


def tell(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def migrate() -> None:
    """Applies what is pending; quick and without effect when nothing is."""
    from django.core.management import call_command
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    tell(step="Database schema", usual=3)
    executor = MigrationExecutor(connection)
    pending = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if pending:
        call_command("migrate", interactive=False, verbosity=0)
    tell(done=f"{len(pending)} changes applied" if pending else "up to date")
    tell(migrated=True)


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "berth.settings")
    django.setup()
    from django.conf import settings

    from berth.env import read_flag
    from berth.host.home import Home

    home = Home(Path(settings.BERTH_HOME))
    migrate()
    if home.demo.exists() or home.demo_pending.exists():
        return 0
    password = secrets.token_urlsafe(12)
    user = ensure_operator(password)
    facts: dict[str, Any] = {"dashboard_url": settings.PUBLIC_URL, "api_base": settings.API_BASE}
    facts |= {"email": user.email, "password": password, "api_key": None, "model": None}
    if read_flag("BERTH_DEMO"):
        facts |= deploy_sample(user)
    home.write(home.demo_pending, facts)
    return 0
