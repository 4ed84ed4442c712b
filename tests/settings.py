"""Django's settings under test: the real ones, pointed at throw-away services.

Nothing is started here: addresses and passwords are only decided, so that they are in the environment before the real
settings read them. `tests/conftest.py` starts the services when a test first asks for them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from berth.host.child import free_port
from berth.host.postgres import Postgres
from berth.host.secrets import DATABASE_PASSWORD, VALKEY_PASSWORD, ensure_secrets, read_secret
from berth.host.valkey import Valkey

TEST_HOME = Path(tempfile.mkdtemp(prefix="berth-test-"))
atexit.register(shutil.rmtree, TEST_HOME, ignore_errors=True)
ensure_secrets(TEST_HOME / "secrets")

POSTGRES = Postgres(
    TEST_HOME / "postgres",
    free_port(),
    read_secret(TEST_HOME / "secrets", DATABASE_PASSWORD),
    durable=False,
    may_create_databases=True,
)
VALKEY = Valkey(TEST_HOME / "valkey", free_port(), read_secret(TEST_HOME / "secrets", VALKEY_PASSWORD), durable=False)

for _name in [name for name in os.environ if name.startswith("BERTH_")]:
    del os.environ[_name]  # a developer's own settings do not change what the tests see
os.environ["BERTH_HOME"] = str(TEST_HOME)
os.environ["DATABASE_URL"] = POSTGRES.url
os.environ["REDIS_URL"] = VALKEY.url

from berth.settings import *  # noqa: E402, F403

# Tests that commit empty the tables afterwards; the ledger lets nobody else do that.
DATABASES["default"]["OPTIONS"] |= {"options": "-c berth.tests=on"}  # type: ignore[operator]  # noqa: F405

# Tests publish when they mean to: a thread of its own would still be at it when the next test begins.
PUBLISH_AT_ONCE = False
LOGGING["loggers"]["httpx"] = {"level": "WARNING"}  # noqa: F405  # a line for every call of a test helps nobody
