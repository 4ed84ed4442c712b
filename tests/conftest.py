"""Real services for tests: each is started once per run, and only when a test asks for it.

- Anything of pytest-django that needs the database (`db`, `@pytest.mark.django_db`) gets PostgreSQL and Valkey.
- `valkey` is a client of a Valkey that is empty at the beginning of the test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from xdist.scheduler.loadscope import LoadScopeScheduling

import tests.settings
from berth.host.postgres import Postgres
from berth.host.valkey import Valkey


@pytest.fixture(scope="session")
def test_home() -> Path:
    """BERTH_HOME of this run, with its secrets."""
    return tests.settings.TEST_HOME


@pytest.fixture(scope="session")
def postgres_server(test_home: Path) -> Iterator[Postgres]:
    """The running embedded PostgreSQL."""
    server = tests.settings.POSTGRES
    server.start(test_home / "postgres.log")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def valkey_server(test_home: Path) -> Iterator[Valkey]:
    """The running embedded Valkey."""
    server = tests.settings.VALKEY
    server.start(test_home / "valkey.log")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres_server: Postgres, valkey_server: Valkey) -> None:
    """Runs before pytest-django makes its test database: this is where the services get started."""


@pytest.fixture
def valkey(valkey_server: Valkey) -> Iterator[redis.Redis]:
    """A client of the running Valkey, which is emptied first."""
    with redis.Redis.from_url(valkey_server.url) as client:
        client.flushall()
        yield client


@pytest.fixture(autouse=True)
def _empty_valkey_for_database_tests(request: pytest.FixtureRequest) -> None:
    """Caches and queues of one test are not seen by the next."""
    if {"db", "transactional_db"} & set(request.fixturenames) or request.node.get_closest_marker("django_db"):
        request.getfixturevalue("valkey")


# End-to-end modules that kill, stop and scale the platform; they have one of their own when there are several processes, so that these
# two long lines of tests, which mostly wait, run side by side.
ROUGH = frozenset({"test_breaking", "test_chaos", "test_restart", "test_scaling", "test_sleep"})

# Modules with engines, clusters and other people's clients, which take longest after them.
LENGTHY = frozenset(
    {
        "tests/gateway/compat/test_clients.py",
        "tests/platform/catalog/test_conversion_sample.py",
        "tests/platform/catalog/test_conversions.py",
        "tests/platform/compute/kubernetes/test_deployment.py",
        "tests/platform/deployments/test_real_replica.py",
        "tests/runtime/test_engine_contract.py",
    }
)


def _rank(item: pytest.Item) -> int:
    if item.get_closest_marker("e2e"):
        return 0
    return 1 if item.nodeid.split("::", 1)[0] in LENGTHY else 2


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that no process is left alone with it at the end."""
    items.sort(key=_rank)


class ByModule(LoadScopeScheduling):
    """Under several processes a module stays in one of them, because its fixtures start servers; end-to-end modules share
    one platform, or two."""

    def _split_scope(self, nodeid: str) -> str:
        module = Path(nodeid.split("::", 1)[0])
        if module.parent != Path("tests/e2e"):
            return str(module)
        return "tests/e2e, rough" if module.stem in ROUGH else "tests/e2e"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByModule:
    return ByModule(config, log)


# A test about being another user needs root; a check of what an engine says it does not do has nothing to check.
MAY_BE_SKIPPED = ("only root", "this engine does not claim it")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI nothing is left out: a skipped test is a failure there, unless its reason is one of `MAY_BE_SKIPPED`."""
    if os.environ.get("CI") != "true" or session.exitstatus != pytest.ExitCode.OK:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return  # one of several test processes: the one that started them counts
    skipped = [
        report
        for report in reporter.stats.get("skipped", [])
        if not any(reason in str(report.longrepr) for reason in MAY_BE_SKIPPED)
    ]
    if skipped:
        reporter.write_line(f"{len(skipped)} tests were skipped, and in CI nothing is left out.", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
