"""Pressing Deploy on a model in safetensors, which no engine of a plain processor reads: converted by the real converters, measured,
planned again, served, metered. And where the first choice turns out too bad by what was measured, the next one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import psycopg
import pytest

from berth.catalog.client import Session, upload
from tests.e2e.conftest import ROOT, Platform
from tests.e2e.dead_channels import with_dead_channels
from tests.e2e.matrix import ANSWER, ASKED, PROMPT
from tests.e2e.test_preparing import ORG, _watched, events, removed, status
from tests.runtime.agents import model_file

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(3600)]
SECONDS = 1500.0


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample model as our converter writes it: a folder of safetensors in 16 bits."""
    if not (ROOT / ".venv-converters" / "bin" / "python").exists():
        pytest.skip("the converters are not installed: make converters")
    work, source = tmp_path_factory.mktemp("sample"), model_file()
    file = {"path": source.path, "role": "weights", "size": source.size, "sha256": source.sha256, "name": "model.gguf"}
    job = {"format": 1, "job": "sample", "files": [file], "target_format": "safetensors", "target": "BF16"}
    (work / "job.json").write_text(json.dumps(job | {"work_dir": str(work)}))
    subprocess.run(
        [sys.executable, "-m", "berth_runtime.convert", str(work / "job.json")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "runtime")},
        check=True,
        timeout=SECONDS,
    )
    made, folder = json.loads((work / "result.json").read_text()), tmp_path_factory.mktemp("model")
    for each in made["files"]:
        (work / each["name"]).rename(folder / each["name"])
    return folder


@pytest.fixture
def brought(platform_up: Platform) -> Iterator[Callable[[str, Path], None]]:
    names: list[str] = []

    def bring(name: str, folder: Path) -> None:
        names.append(name)
        session = Session(platform_up.demo["dashboard_url"])
        session.sign_in(platform_up.demo["email"], platform_up.demo["password"])
        run = upload(session, "my-org", name, sorted(folder.iterdir()))
        done = platform_up.wait_for(lambda: _watched(session, run["id"]), seconds=SECONDS)
        session.close()
        assert done["state"] == "done", done

    yield bring
    for name in names:
        removed(platform_up, name)


def deployed(platform: Platform, name: str, **wish: Any) -> dict[str, Any]:
    """As it is when it is ready."""
    session = platform.sign_in()
    answer = session.post(f"{ORG}/deployments", json={"model": name} | wish)
    assert answer.status_code == 201, answer.text

    def ready() -> bool:
        now = status(platform, name)
        assert now["state"] != "failed", now
        return bool(now["state"] == "ready")

    platform.wait_for(ready, seconds=SECONDS)
    shown: dict[str, Any] = session.get(f"{ORG}/deployments/{name}").json()
    return shown


def answered_and_metered(platform: Platform, shown: dict[str, Any]) -> None:
    with openai.OpenAI(
        base_url=platform.demo["api_base"], api_key=platform.demo["api_key"], max_retries=0, timeout=240
    ) as client:
        said = client.completions.create(
            model=f"my-org/{shown['name']}", prompt=PROMPT, max_tokens=ASKED, temperature=0
        )
    assert ANSWER in said.choices[0].text
    assert said.usage is not None
    assert said.usage.completion_tokens == ASKED

    def metered() -> list[Any]:
        with psycopg.connect(platform.database_url) as connection:
            return connection.execute(
                "select completion_tokens from metering_usageevent where deployment_id = %s", [shown["id"]]
            ).fetchall()

    assert platform.wait_for(metered, seconds=60) == [(ASKED,)]


def test_safetensors_become_what_this_machine_can_serve(
    platform_up: Platform, sample: Path, brought: Callable[[str, Path], None]
) -> None:
    brought("converted", sample)
    planned = platform_up.sign_in().post(f"{ORG}/plans", json={"model": "converted"}).json()
    assert (planned["choice"]["engine"], planned["choice"]["artefact"]["quantization"]) == ("llamacpp", "Q8_0")
    assert planned["choice"]["made_of"]
    shown = deployed(platform_up, "converted")
    assert (shown["revision"]["engine"], shown["revision"]["quantization"]) == ("llamacpp", "Q8_0")
    [quality] = [each for each in shown["revision"]["plan"]["choice"]["reasons"] if each["code"] == "quality_measured"]
    assert 0 < quality["params"]["divergence"] < 0.05
    answered_and_metered(platform_up, shown)

    # The same bytes under another name are not converted again.
    session = platform_up.sign_in()
    before = [each["id"] for each in session.get(f"{ORG}/conversions").json()["items"]]
    brought("converted-too", sample)
    answered_and_metered(platform_up, deployed(platform_up, "converted-too"))
    [twin] = [each for each in session.get(f"{ORG}/conversions").json()["items"] if each["id"] not in before]
    assert (twin["state"], twin["step"], twin["total"]) == ("done", "", 0)  # no program ran


def test_what_measuring_finds_too_bad_gives_way_to_what_it_finds_good(
    platform_up: Platform, sample: Path, brought: Callable[[str, Path], None], tmp_path: Path
) -> None:
    """By its bits `Q8_0` is the best there is. Measured, it is far below the floor here, and `Q6_K` is not."""
    name = "dead-channels"
    brought(name, with_dead_channels(sample, tmp_path / "model", layers=30))
    shown = deployed(platform_up, name, needs={"quality": "good", "context_length": 512, "concurrency": 1})
    assert shown["revision"]["quantization"] == "Q6_K"
    choice = shown["revision"]["plan"]["choice"]
    [kept] = [each["params"] for each in choice["reasons"] if each["code"] == "quality_measured"]
    [passed] = [each for each in events(platform_up, name) if each["kind"] == "quantization_passed_over"]
    assert (passed["data"]["quantization"], passed["data"]["reason"]) == ("Q8_0", "measured_loss")
    rejected = [each for each in shown["revision"]["plan"]["rejected"] if each["engine"] == "llamacpp"]
    against = [each for each in rejected if each["quantization"] == "Q8_0"]
    assert [each["code"] for each in against] == ["measured_loss"]
    assert against[0]["message"] == passed["data"]["message"]
    assert against[0]["params"]["loss"] > against[0]["params"]["limit"] == 4.0
    assert kept["divergence"] < 0.09 < against[0]["params"]["divergence"]
    answered_and_metered(platform_up, shown)
