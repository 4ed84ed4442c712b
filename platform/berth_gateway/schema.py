"""Bounds on JSON schemas that clients give to engines: engines turn them into grammars, and a hostile one kills the engine.

Checked: size, depth, references, number of alternatives, counted repeats, patterns. Pure.
"""

from __future__ import annotations

import msgspec

MAX_BYTES = 64 * 1024
MAX_DEPTH = 32
MAX_ALTERNATIVES = 2048  # over the whole schema: anyOf, oneOf, allOf, enum members
MAX_REPEAT = 10_000  # minItems, maxLength and the like
MAX_PATTERN = 512  # characters
MAX_PATTERN_DEPTH = 16  # nested groups
MAX_PATTERN_REPEAT = 1000

_ALTERNATIVES = ("anyOf", "oneOf", "allOf", "enum", "prefixItems")
_REPEATS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")  # names here are not keywords


def problem(schema: object) -> str | None:
    """What is wrong with a decoded schema, as the end of a sentence; None when it may go to an engine."""
    try:
        if len(msgspec.json.encode(schema)) > MAX_BYTES:
            return f"is larger than {MAX_BYTES // 1024} KiB"
    except RecursionError:
        return f"is nested deeper than {MAX_DEPTH} levels"
    alternatives = 0
    # (value, depth, whether its keys are names rather than keywords)
    queue: list[tuple[object, int, bool]] = [(schema, 1, False)]
    while queue:
        value, depth, named = queue.pop()
        if depth > MAX_DEPTH:
            return f"is nested deeper than {MAX_DEPTH} levels"
        if isinstance(value, list):
            queue.extend((item, depth + 1, False) for item in value)
            continue
        if not isinstance(value, dict):
            continue
        if not named:
            fault = _keyword_problem(value)
            if fault is not None:
                return fault
            alternatives += sum(len(value[k]) for k in _ALTERNATIVES if isinstance(value.get(k), list))
            if alternatives > MAX_ALTERNATIVES:
                return f"has more than {MAX_ALTERNATIVES} alternatives"
        queue.extend((item, depth + 1, not named and key in _NAMED) for key, item in value.items())
    return None


def _keyword_problem(schema: dict[str, object]) -> str | None:
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        return "has a $ref that is not local (it must begin with '#')"
    for key in _REPEATS:
        count = schema.get(key)
        if isinstance(count, int | float) and not 0 <= count <= MAX_REPEAT:
            return f"has {key} outside 0 to {MAX_REPEAT}"
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        return _pattern_problem(pattern)
    return None


def _pattern_problem(pattern: str) -> str | None:
    if len(pattern) > MAX_PATTERN:
        return f"has a pattern longer than {MAX_PATTERN} characters"
    depth = 0
    number = ""
    for char in pattern:
        if char == "(":
            depth += 1
            if depth > MAX_PATTERN_DEPTH:
                return f"has a pattern with more than {MAX_PATTERN_DEPTH} nested groups"
        elif char == ")":
            depth -= 1
        number = number + char if char.isdigit() else ""
        if number and int(number) > MAX_PATTERN_REPEAT:
            return f"has a pattern with a number above {MAX_PATTERN_REPEAT}"
    return None
