"""Label and field selectors as the API takes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.platform.compute.kubernetes.apiserver.failure import Failure

Json = dict[str, Any]
_SET = re.compile(r"\s*([^\s!=]+)\s+(in|notin)\s+\(([^)]*)\)\s*")
_FIELDS = {
    "metadata.name",
    "metadata.namespace",
    "spec.nodeName",
    "status.phase",
    "involvedObject.name",
    "involvedObject.namespace",
    "involvedObject.uid",
    "involvedObject.kind",
    "reason",
    "type",
}


def label_selector(text: str) -> Callable[[Json], bool]:
    """Raises Failure 400."""
    rules = [_rule(part) for part in re.split(r",(?![^(]*\))", text) if part.strip()]

    def matches(body: Json) -> bool:
        labels = body["metadata"].get("labels") or {}
        return all(rule(labels) for rule in rules)

    return matches


def _rule(text: str) -> Callable[[dict[str, str]], bool]:
    if match := _SET.fullmatch(text):
        key, operator, values = match.groups()
        wanted = {value.strip() for value in values.split(",")}
        return (
            (lambda labels: labels.get(key) in wanted)
            if operator == "in"
            else (lambda labels: labels.get(key) not in wanted)
        )
    if "!=" in text:
        key, value = (part.strip() for part in text.split("!=", 1))
        return lambda labels: labels.get(key) != value
    if "=" in text:
        key, value = (part.strip() for part in text.replace("==", "=").split("=", 1))
        if not re.fullmatch(r"[A-Za-z0-9]?[A-Za-z0-9._-]{0,62}", value):
            raise Failure(400, "BadRequest", f"unable to parse requirement: invalid label value {value!r}")
        return lambda labels: labels.get(key) == value
    key = text.strip()
    return (lambda labels: key[1:] not in labels) if key.startswith("!") else (lambda labels: key in labels)


def field_selector(text: str) -> Callable[[Json], bool]:
    """Raises Failure 400 for a field by which nothing can be selected."""
    rules = []
    for part in filter(None, text.split(",")):
        field, negated, value = re.split(r"(!=|==?)", part, maxsplit=1)
        if field not in _FIELDS:
            raise Failure(400, "BadRequest", f'"{field}" is not a known field selector')
        rules.append((field.split("."), negated == "!=", value))

    def at(body: Any, path: list[str]) -> str:
        for key in path:
            body = (body or {}).get(key)
        return "" if body is None else str(body)

    return lambda body: all((at(body, path) == value) != negated for path, negated, value in rules)
