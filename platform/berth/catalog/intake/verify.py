"""Asks the caged reader about a set of files, and then the caged renderer about its chat templates."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from berth.catalog.facts import ModelFacts
from berth.catalog.intake.refused import Refused
from berth.catalog.intake.template import check_template
from berth.catalog.intake.verdict import Answer, Question, Verdict

_READER: Final = Path(__file__).with_name("__main__.py")
_SECONDS: Final = 60  # a last resort, for a disk that does not answer: the reader's own limit is processor time
_MOST_ANSWER: Final = 8 << 20


def verify(files: Mapping[str, Path], base: ModelFacts | None = None) -> Verdict:
    """What the files are. `base`: of an adapter. Raises Refused."""
    verdict = _asked(Question({name: str(path) for name, path in files.items()}, base))
    artefact = verdict.artefact
    for name, text in sorted(verdict.templates.items()):
        try:
            checked = check_template(text, artefact)
        except Refused as refused:
            refused.file = refused.file or _file_of(verdict)
            raise
        if name == "default":
            artefact = checked
    return msgspec.structs.replace(verdict, artefact=artefact)


def _asked(question: Question) -> Verdict:
    answer = _run(question)
    if answer.fault is not None:
        raise Refused(answer.fault.code, answer.fault.message, file=answer.fault.file, **answer.fault.params)
    if answer.verdict is None:
        raise _too_expensive()
    return answer.verdict


def _run(question: Question) -> Answer:
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-B", str(_READER)],
            input=msgspec.json.encode(question),
            capture_output=True,
            env={"LANG": "C.UTF-8"},
            cwd="/",
            timeout=_SECONDS,
            check=False,
        )
        return msgspec.json.decode(done.stdout[:_MOST_ANSWER], type=Answer)
    except (subprocess.TimeoutExpired, msgspec.DecodeError):
        raise _too_expensive() from None  # it was ended by a limit before it could say anything


def _too_expensive() -> Refused:
    return Refused("too_expensive", "reading its header takes more memory or time than any real model's.")


def _file_of(verdict: Verdict) -> str | None:
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json", *verdict.roles):
        if name in verdict.roles:
            return name
    return None
