"""Brings the database up to date and, on the very first start, makes an organisation with a model that answers.

Runs as a program of its own under the supervisor (`python -m berth.host.firstrun`), so that the supervisor itself never
loads Django. Progress goes to standard output, a JSON object a line: `{"step": title, "usual": seconds}` begins a step,
`{"done": text}` ends it (the first one ends the schema's, which the supervisor began), `{"migrated": true}` says that
the other programs may start, `{"note": text}` is for people to read, `{"error": text}` is the last line of a failure.

Everything may be interrupted at any point and done again: what cannot be found out a second time, the password, is
written down before it is used. An operator or organisation that this BERTH_HOME did not make is never touched.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django

if TYPE_CHECKING:
    from berth.host.home import Home
    from berth.orgs.models import Organisation, User

OPERATOR_EMAIL = "operator@localhost"
ORGANISATION = "my-org"
KEY_NAME = "First key"


def tell(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def migrate() -> None:
    """Applies what is pending; quick and without effect when nothing is."""
    from django.core.management import call_command
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connection)
    pending = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if pending:
        call_command("migrate", interactive=False, verbosity=0)
    tell(done=f"{len(pending)} changes applied" if pending else "up to date")
    tell(migrated=True)


def first_start(home: Home, *, demo: bool) -> dict[str, Any]:
    """Makes the operator and, with `demo`, the organisation and its deployment. Returns the facts of demo.json."""
    from django.conf import settings

    from berth.orgs.models import Organisation, User

    draft = home.read(home.draft)
    ours = bool(draft)
    password = draft.get("password") or secrets.token_urlsafe(12)
    facts: dict[str, Any] = {"dashboard_url": settings.PUBLIC_URL, "api_base": settings.API_BASE, "api_key": None}
    facts |= {"model": None, "email": OPERATOR_EMAIL, "password": password}
    user = User.objects.filter(email=OPERATOR_EMAIL).first()
    if user is not None and not ours:
        tell(note="The database knows an operator already, so no password was made. Sign in with the one you have.")
        return facts | {"password": None}
    home.write(home.draft, {"password": password})
    if user is None:
        user = User.objects.create_user(
            OPERATOR_EMAIL, password, name="Operator", is_operator=True, password_is_temporary=True
        )
    if demo and (ours or not Organisation.objects.filter(slug=ORGANISATION).exists()):
        facts |= deploy_sample(user)
    return facts


def deploy_sample(user: User) -> dict[str, Any]:
    """An organisation of the user's with the sample model, deployed as the Deploy button does, and a key to call it."""
    from berth.orgs.models import Organisation
    from berth.orgs.services import create_organisation

    org = Organisation.objects.filter(slug=ORGANISATION).first()
    if org is None:
        org = create_organisation(slug=ORGANISATION, name="My organisation", owner=user)
    name = deploy_in(org, user)
    return {"model": f"{org.slug}/{name}", "api_key": fresh_key(org, user)}


def deploy_in(org: Organisation, user: User) -> str:
    """Imports the sample model and deploys it unless that is done already. Returns the deployment's name."""
    from berth.catalog.services import import_sample
    from berth.deployments.models import Deployment
    from berth.deployments.services import deploy

    tell(step="Sample model: copied, checked and read", usual=2)
    version = import_sample(org, user)
    name = version.model.name
    tell(done="imported")
    if not Deployment.objects.for_org(org).filter(name=name).exclude(state="deleted").exists():
        tell(step="Plan and deployment", usual=1)
        deploy(org, user, name=name, version=version)
        tell(done="deployed")
    return name


def fresh_key(org: Organisation, user: User) -> str:
    """A key whose secret we know. One that an interrupted first start made is replaced: nobody ever saw it."""
    from django.utils import timezone

    from berth.keys.models import ApiKey
    from berth.keys.services import create_key, revoke_key
    from berth.orgs.models import Member

    member = Member.objects.for_org(org).get(user=user)
    now = timezone.now()
    for lost in ApiKey.objects.for_org(org).filter(name=KEY_NAME, revoked_at=None):
        revoke_key(member, lost.pk, now=now)
    return create_key(member, name=KEY_NAME, now=now).secret


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "berth.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.db import OperationalError

    try:
        django.setup()
        return run()
    except ImproperlyConfigured as error:
        tell(error=str(error))
    except OperationalError as error:
        # The driver's text names host, port and user, never the password.
        tell(error=f"The database does not answer: {str(error).strip()} Check DATABASE_URL and the server.")
    return 1


def run() -> int:
    from django.conf import settings

    from berth.env import read_flag
    from berth.host.home import Home
    from berth.web.errors import ApiError

    home = Home(Path(settings.BERTH_HOME))
    migrate()
    if home.started_before or home.demo_pending.exists():
        return 0
    try:
        home.write(home.demo_pending, first_start(home, demo=read_flag("BERTH_DEMO")))
    except ApiError as error:
        tell(error=f"The sample model could not be deployed: {error}. With BERTH_DEMO=0 Berth starts without it.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
