"""Renders a chat template under limits. Run as a program of its own: template on stdin, one JSON line on stdout.

    {"accepts": ["user", "system", …]}   or   {"fault": "unsafe", "line": 7}

Nothing here is imported by Berth, and this imports nothing of Berth.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY: Final = 512 << 20  # bytes
SECONDS: Final = 2  # of processor time
OUTPUT: Final = 1 << 20  # characters
MARK: Final = "berth-probe-7f3a"  # what a rendered turn has to contain

_USER: Final = {"role": "user", "content": MARK}
_TOOL: Final = {
    "type": "function",
    "function": {"name": "probe", "description": MARK, "parameters": {"type": "object", "properties": {}}},
}
_CALL: Final = {"id": "call_1", "type": "function", "function": {"name": "probe", "arguments": {}}}
_PLAIN_USER: Final = {"role": "user", "content": "x"}
CASES: Final[dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]]] = {
    "user": ([_USER], None),
    "system": ([{"role": "system", "content": MARK}, _PLAIN_USER], None),
    "developer": ([{"role": "developer", "content": MARK}, _PLAIN_USER], None),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": MARK}]}], None),
    "users_in_a_row": ([_PLAIN_USER, _USER], None),
    "tools": ([_PLAIN_USER], [_TOOL]),
    "tool_turns": (
        [
            _PLAIN_USER,
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": MARK},
        ],
        [{**_TOOL, "function": {**_TOOL["function"], "description": "x"}}],  # type: ignore[dict-item]
    ),
}


class TooMuch(Exception):
    """More output than any real template makes."""


class Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training. It changes nothing here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def main() -> int:
    source = sys.stdin.buffer.read().decode("utf-8")
    limit()
    try:
        print(json.dumps(judged(source)), flush=True)  # noqa: T201 - this is the answer
    except (MemoryError, RecursionError):
        print('{"fault": "unsafe"}', flush=True)  # noqa: T201
    return 0


def limit() -> None:
    for what, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 16),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def judged(source: str) -> dict[str, Any]:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation], keep_trailing_newline=True
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _tojson
    try:
        tree = environment.parse(source)
    except TemplateSyntaxError as error:
        return {"fault": "unusable", "line": error.lineno}
    line = forbidden(tree)
    if line:
        return {"fault": "unsafe", "line": line}
    template = environment.from_string(source)
    accepts = []
    for name, (messages, tools) in CASES.items():
        try:
            text = rendered(template.generate, messages, tools)
        except (SecurityError, TooMuch):
            return {"fault": "unsafe", "line": None}
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
            continue
        if MARK in text:
            accepts.append(name)
    return {"accepts": accepts}


def forbidden(tree: nodes.Template) -> int | None:
    """The first line that loads something else, or names what only Python's innards are called."""
    for kind in (nodes.Import, nodes.FromImport, nodes.Include, nodes.Extends):
        loads = tree.find(kind)
        if loads is not None:
            return int(loads.lineno)
    for node in tree.find_all((nodes.Getattr, nodes.Const, nodes.Name)):
        name = getattr(node, "attr", None) or getattr(node, "value", None) or getattr(node, "name", None)
        if isinstance(name, str) and name.startswith("__") and name.endswith("__"):
            return int(node.lineno)
    return None


def rendered(generate: Callable[..., Any], messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    parts, length = [], 0
    for part in generate(
        messages=messages, tools=tools, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", documents=None
    ):
        length += len(part)
        if length > OUTPUT:
            raise TooMuch
        parts.append(part)
    return "".join(parts)


def _raise(message: str) -> NoReturn:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now(UTC).strftime(form)


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


if __name__ == "__main__":
    sys.exit(main())
