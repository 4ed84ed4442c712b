"""Chat templates: programs that come with a model. They are rendered in a child process with limits, and only to see whether
they can; see `render.py` for what it does.

Safe and able to render one plain user turn is enough to be accepted. What a template loses or refuses beyond that (a system
turn, tools, two user turns in a row) is recorded, because most real templates refuse something.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from berth.catalog.facts import ArtefactFacts
from berth.catalog.intake.refused import Refused

_RENDER: Final = Path(__file__).with_name("render.py")
_SECONDS: Final = 20  # for the whole child, as a last resort: its own limit is processor time


class _Told(msgspec.Struct):
    """The child's last word."""

    accepts: tuple[str, ...] = ()
    fault: str | None = None  # "unsafe", "unusable"
    line: int | None = None


def check_template(template: str, facts: ArtefactFacts) -> ArtefactFacts:
    """The facts with what the template accepts. Raises Refused."""
    told = _rendered(template)
    where = f" in line {told.line}" if told.line else ""
    if told.fault == "unsafe":
        raise Refused(
            "unsafe_chat_template",
            f"its chat template does something{where} that a template must not: it reaches for other files or for Python itself, or "
            "takes more memory, time or output than any real one.",
            line=told.line,
        )
    if told.fault is not None or "user" not in told.accepts:
        raise Refused(
            "unusable_chat_template",
            f"its chat template cannot render one plain message{where}. Give the model a template that can.",
            line=told.line,
        )
    return msgspec.structs.replace(facts, chat_template_accepts=told.accepts)


def _rendered(template: str) -> _Told:
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-B", str(_RENDER)],
            input=template.encode(),
            capture_output=True,
            env={"LANG": "C.UTF-8"},
            cwd="/",
            timeout=_SECONDS,
            check=False,
        )
        return msgspec.json.decode(done.stdout[:4096], type=_Told)
    except (subprocess.TimeoutExpired, msgspec.DecodeError):
        return _Told(fault="unsafe")  # it was ended by a limit before it could say anything
