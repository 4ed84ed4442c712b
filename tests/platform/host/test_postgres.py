from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from berth.host.child import free_port
from berth.host.errors import HostError
from berth.host.postgres import Postgres

PASSWORD = "it's a 'pass@word/with:marks"


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    server = Postgres(tmp_path / "postgres", free_port(), PASSWORD, durable=False)
    server.start(tmp_path / "postgres.log")
    yield server
    server.stop()


def test_data_outlives_a_killed_server(postgres: Postgres, tmp_path: Path) -> None:
    with psycopg.connect(postgres.url) as connection:
        connection.execute("CREATE TABLE ships (name text)")
        connection.execute("INSERT INTO ships VALUES ('Rurik')")
    assert postgres.process is not None
    os.kill(postgres.process.pid, signal.SIGKILL)
    # At once, while the killed server's own children still hold its shared memory.
    postgres.start(tmp_path / "postgres.log")
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute("SELECT name FROM ships").fetchall() == [("Rurik",)]


def test_password_is_demanded_and_nobody_signs_in_as_superuser(postgres: Postgres) -> None:
    for user, password in (("berth", "wrong"), ("berth", None), ("postgres", PASSWORD), ("postgres", "")):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(host="127.0.0.1", port=postgres.port, user=user, password=password, dbname="berth")
    with psycopg.connect(postgres.url) as connection:
        row = connection.execute("SELECT rolsuper, rolcreatedb FROM pg_roles WHERE rolname = 'berth'").fetchone()
        assert row == (False, False)


def test_data_folder_is_the_owners_alone(postgres: Postgres) -> None:
    assert stat.S_IMODE(postgres.data.stat().st_mode) == 0o700
    assert stat.S_IMODE((postgres.folder.parent / "postgres.log").stat().st_mode) == 0o600


def test_log_shows_neither_statements_nor_values(postgres: Postgres, tmp_path: Path) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE people (email text PRIMARY KEY)")
        for _ in range(2):
            try:
                connection.execute("INSERT INTO people VALUES (%s)", ["canary@example.org"])
            except psycopg.errors.UniqueViolation:
                break
    log = (tmp_path / "postgres.log").read_text()
    assert "duplicate key" in log
    assert "canary" not in log


def test_lock_file_whose_pid_is_now_another_program_does_not_matter(postgres: Postgres, tmp_path: Path) -> None:
    lock = (postgres.data / "postmaster.pid").read_text().split("\n")
    postgres.stop()
    (postgres.data / "postmaster.pid").write_text("\n".join([str(os.getpid()), *lock[1:]]))
    postgres.start(tmp_path / "postgres.log")
    assert postgres.ready()


def test_interrupted_first_start_is_begun_again(tmp_path: Path) -> None:
    half = tmp_path / "postgres" / "data.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    server = Postgres(tmp_path / "postgres", free_port(), PASSWORD)
    try:
        server.start(tmp_path / "log")
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.stop()


def test_what_stops_it_is_told_with_its_own_last_words(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berth.host.postgres.LOCK_PATIENCE", 0.5)
    postgres.stop()
    (postgres.data / "PG_VERSION").write_text("9.6\n")
    with pytest.raises(HostError, match=r"(?s)ended with code 1.*incompatible with server.*other\.log"):
        postgres.start(tmp_path / "other.log")


def test_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from berth.host.postgres import Postgres\n"
        "server = Postgres(Path(sys.argv[1]), int(sys.argv[2]), 'x', durable=False); server.start()\n"
        "print(server.process.pid, flush=True); sys.stdin.read()"
    )
    roots = os.pathsep.join(path for path in sys.path if path)
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "postgres"), str(free_port())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": roots},
    )
    assert starter.stdout is not None
    server = psutil.Process(int(starter.stdout.readline()))
    family = [server, *server.children(recursive=True)]
    assert len(family) > 1
    starter.kill()
    starter.communicate()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []
    assert not (tmp_path / "postgres" / "data" / "postmaster.pid").exists(), "it did not shut down cleanly"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become someone else")
@pytest.mark.parametrize("blocked", [("mapped",), ("mapped", "nobody")])
def test_root_without_user_namespaces(
    blocked: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import berth.host.postgres as module

    real = module.launch_argv

    def launch_argv(argv, death_signal, identity="same"):  # type: ignore[no-untyped-def]
        return real(argv, death_signal, "blocked" if identity in blocked else identity)

    monkeypatch.setattr(module, "launch_argv", launch_argv)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.name.startswith(("pytest-", "popen-", "test_")):  # not /tmp itself, which everyone may enter
            folder.chmod(0o711)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    server = Postgres(home / "postgres", free_port(), PASSWORD, durable=False)
    if "nobody" in blocked:
        with pytest.raises(HostError, match="does not run as root"):
            server.start()
        return
    try:
        server.start(home / "log")
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE kept ()")
        assert server.data.stat().st_uid == 65534
        server.stop()
        # Moved to a machine that allows namespaces: the files go back to root.
        monkeypatch.undo()
        again = Postgres(home / "postgres", server.port, PASSWORD, durable=False)
        again.start(home / "log")
        with psycopg.connect(again.url) as connection:
            connection.execute("SELECT * FROM kept")
        assert again.data.stat().st_uid == 0
        again.stop()
    finally:
        server.stop()


def test_waits_for_a_dying_predecessor(postgres: Postgres, tmp_path: Path) -> None:
    """A second manager starts while the first server is still shutting down."""
    assert postgres.process is not None
    successor = Postgres(postgres.folder, postgres.port, PASSWORD, durable=False)
    successor.spawn(tmp_path / "successor.log")
    time.sleep(0.3)
    assert not successor.ready(), "two servers on one data folder"
    postgres.process.send_signal(signal.SIGINT)
    successor.wait_ready(tmp_path / "successor.log")
    try:
        with psycopg.connect(successor.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        successor.stop()
