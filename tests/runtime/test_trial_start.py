"""The trial start: what a replica proves with the real engine before anybody's request reaches it.

The files are the sample model's with another chat template of the same length in its place, so nothing else of them changes. The
intake refuses the worst of these; here nothing stands before the engine, and the replica still never becomes ready.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from berth_runtime.spec import ModelFile, Phase, ReplicaStatus
from tests.runtime.agents import Agent, a_spec, file_of, model_file

_KEY = b"tokenizer.chat_template" + struct.pack("<I", 8)
RAISES = "{{ raise_exception('this template renders nothing') }}"
# Passes whatever the engine tries at its start, and fails when somebody says what the trial says.
PICKY = "{% for m in messages %}{% if m['content'] == '1' %}{{ raise_exception('no') }}{% endif %}{{ m['content'] }}{% endfor %}"
ENDLESS = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}1"
BOMB = (
    "{% set ns = namespace(x='AAAAAAAA') %}{% for a in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}"
)


def with_template(folder: Path, template: str) -> ModelFile:
    """The sample model with this template, filled up with spaces to the length of its own."""
    content = bytearray(Path(model_file().path).read_bytes())
    at = content.index(_KEY) + len(_KEY)
    (length,) = struct.unpack_from("<Q", content, at)
    text = template.encode()
    assert len(text) <= length
    content[at + 8 : at + 8 + length] = text + b" " * (length - len(text))
    path = folder / "other.gguf"
    path.write_bytes(content)
    return file_of(path)


def ended(folder: Path, template: str, **changes: Any) -> ReplicaStatus:
    """The last status of a replica that must not become ready, with every engine of it gone."""
    with Agent(a_spec(folder, files=(with_template(folder, template),), chat=True, **changes)) as agent:
        status = agent.wait(Phase.FAILED)
        assert Phase.READY not in [timing.phase for timing in status.phases]
    return status


@pytest.mark.threat("M5")
@pytest.mark.parametrize("template", [RAISES, PICKY])
def test_a_template_that_renders_nothing_never_serves(tmp_path: Path, template: str) -> None:
    status = ended(tmp_path, template)
    assert status.reason == "chat_template_fails", status.message
    assert "chat template" in (status.message or "")


@pytest.mark.threat("M5")
@pytest.mark.parametrize("template", [ENDLESS, BOMB])
def test_a_hostile_template_ends_within_the_replicas_limits(tmp_path: Path, template: str) -> None:
    status = ended(tmp_path, template, start_deadline_seconds=15, memory_limit=1_200 << 20)
    assert status.reason in (
        "chat_template_fails",
        "out_of_memory",
        "engine_exited",
        "start_timeout",
        "model_unreadable",
    )


def test_a_template_that_renders_is_part_of_every_start(tmp_path: Path) -> None:
    with Agent(a_spec(tmp_path, chat=True)) as agent:
        agent.ready()
