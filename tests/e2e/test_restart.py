"""Stopping, dying and coming back: nothing is left running, nothing is lost, and it serves again."""

from __future__ import annotations

import contextlib
import signal

import httpx
import psutil
import psycopg
import pytest

from tests.e2e.conftest import Platform

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def command(process: psutil.Process) -> str:
    """Empty for one that has just ended: databases start and end processes all the time."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def complete(platform: Platform) -> httpx.Response:
    headers = {"Authorization": f"Bearer {platform.demo['api_key']}"}
    body = {"model": platform.demo["model"], "prompt": "The capital of France is", "max_tokens": 2}
    return httpx.post(f"{platform.demo['api_base']}/completions", json=body, headers=headers, timeout=60)


def outcomes(platform: Platform) -> dict[str, int]:
    """How many usage events had which outcome."""
    with psycopg.connect(platform.database_url) as connection:
        return dict(connection.execute("select outcome, count(*) from metering_usageevent group by outcome").fetchall())


def alive(processes: list[psutil.Process]) -> list[str]:
    """Which of these still run, by what they are; a zombie that nobody has waited for yet does not run."""
    _, left = psutil.wait_procs(processes, timeout=30)
    return [" ".join(p.cmdline()[:4]) for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_the_platform_stops_whole_and_resumes_with_all_data(platform_up: Platform, how: signal.Signals) -> None:
    assert complete(platform_up).status_code == 200
    platform_up.wait_for(platform_up.everything_is_ingested)
    events_before = platform_up.count("metering_usageevent")
    failed_before = outcomes(platform_up).get("upstream_error", 0)
    facts_before = dict(platform_up.demo)
    processes = platform_up.processes()
    names = " ".join(map(command, processes))
    for part in ("postgres", "valkey", "berth_gateway", "uvicorn", "celery", "berth_runtime"):
        assert part in names, f"{part} was not among the processes that are checked"

    platform_up.end(how)
    assert alive(processes) == []

    platform_up.start()
    # What waits for the model asks once it can answer, so that a start never leaves a failed request on a statement.
    platform_up.wait_for(platform_up.everything_is_ingested)
    assert platform_up.count("metering_usageevent") == events_before + 1, outcomes(platform_up)
    assert outcomes(platform_up).get("upstream_error", 0) == failed_before

    platform_up.wait_for(lambda: complete(platform_up).status_code == 200, seconds=60)
    assert platform_up.demo == facts_before, "the same key, model and addresses work after a restart"
    platform_up.wait_for(platform_up.everything_is_ingested)
    assert platform_up.count("metering_usageevent") > events_before


def test_a_second_start_says_that_one_is_running(platform_up: Platform) -> None:
    done = platform_up.try_second_start()
    assert done.returncode != 0
    assert platform_up.demo["dashboard_url"] in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert complete(platform_up).status_code == 200


def test_killing_the_engine_brings_it_back(platform_up: Platform) -> None:
    engines = [p for p in platform_up.processes() if "berth_runtime" in command(p)]
    assert engines
    for process in engines:
        with contextlib.suppress(psutil.NoSuchProcess):  # an engine ends with its agent
            process.kill()
    platform_up.wait_for(lambda: complete(platform_up).status_code == 200, seconds=60)
