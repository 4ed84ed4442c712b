"""Chat templates: safe ones are accepted with what they can, hostile ones are refused and cost the worker nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from berth.catalog.errors import Refused
from berth.catalog.facts import ArtefactFacts
from berth.catalog.intake import template as intake
from berth.catalog.intake.gguf import read_gguf
from berth.catalog.intake.template import check_template
from berth.catalog.sample import sample_path

FACTS = ArtefactFacts(1, "F32", 1, 4, 4, 32)
CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def test_the_sample_is_accepted_with_what_it_renders() -> None:
    _, facts, template = read_gguf(sample_path())
    assert template is not None
    accepts = check_template(template, facts).chat_template_accepts
    assert {"user", "system", "users_in_a_row"} <= set(accepts)
    assert "tools" not in accepts  # it has no place for them


def test_what_a_template_refuses_is_recorded() -> None:
    picky = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
        "{% generation %}" + CHATML + "{% endgeneration %}{% if tools %}{{ tools | tojson }}{% endif %}"
    )
    accepts = check_template(picky, FACTS).chat_template_accepts
    assert "user" in accepts
    assert "tools" in accepts
    assert "system" not in accepts


HOSTILE = {
    "globals": ("\n{{ cycler.__init__.__globals__ }}", 2),
    "globals by filter": ("{{ cycler | attr('__init__') }}", 1),
    "subclasses": ("\n\n{{ ().__class__.__base__.__subclasses__() }}", 3),
    "include": ("\n{% include '/etc/passwd' %}", 2),
    "import": ("{% import 'os' as os %}", 1),
    "from import": ("{% from 'os' import path %}", 1),
    "extends": ("{% extends 'x' %}", 1),
    "output": ("{{ 'A' * 400000000 }}", None),
    "memory": ("{{ ('A' * 400000000) ~ ('B' * 400000000) }}", None),
    "time": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", None),
    "many small pieces": ("{% for a in range(99999) %}" + "x" * 99 + "{% endfor %}", None),
}


@pytest.mark.threat("M5")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_refused_with_their_line(name: str) -> None:
    template, line = HOSTILE[name]
    with pytest.raises(Refused) as refused:
        check_template(template, FACTS)
    assert refused.value.code == "unsafe_chat_template"
    assert refused.value.params["line"] == line


@pytest.mark.parametrize(
    "template", ["{% for %}", "{{ nothing }}", "{{ raise_exception('no') }}", "{{ messages[9]['x'] + 1 }}"]
)
def test_templates_that_render_no_turn_are_refused(template: str) -> None:
    with pytest.raises(Refused) as refused:
        check_template(template, FACTS)
    assert refused.value.code == "unusable_chat_template"


@pytest.mark.threat("M5")
def test_the_child_has_its_limits() -> None:
    """The very limits, asked of a process that set them; so that the tests above are not passed by luck."""
    script = (
        f"import sys; sys.path.insert(0, {str(Path(intake.__file__).parent)!r})\n"
        "import render, resource; render.limit()\n"
        "print(*(resource.getrlimit(what)[0] for what in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert [int(word) for word in done.stdout.split()] == [512 << 20, 2, 0]
