"""What of an engine's output may be kept: known formats, of which only numbers and fixed words survive.

Engines print text of requests when something is wrong with it (a broken JSON body, a grammar that does not parse). So
nothing is kept because it looks harmless. A line that matches a rule as a whole is written anew from the rule's own
words and the numbers in the line; any other line is counted and forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

MAX_LINE: Final = 4096  # bytes; longer lines are withheld without being collected


@dataclass(frozen=True)
class Rule:
    """`pattern` must match the whole line; every group of it must be numeric, which is checked.

    `text` is a format string that is filled with the groups by name, or None for routine lines that are not worth
    keeping. `event` names the rule for the supervisor ("listening", "out_of_memory" …).
    """

    pattern: str
    text: str | None
    event: str | None = None
    compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compiled", re.compile(self.pattern, re.ASCII))


@dataclass(frozen=True)
class Kept:
    text: str
    event: str | None
    numbers: dict[str, str]


class LineFilter:
    """Splits output into lines and judges each. `withheld(bytes)` is told how much was dropped, `kept` what was not."""

    def __init__(self, rules: tuple[Rule, ...], kept: Callable[[Kept], None], withheld: Callable[[int], None]) -> None:
        self._rules = rules
        self._kept = kept
        self._withheld = withheld
        self._partial = b""
        self._overlong = False

    def feed(self, data: bytes) -> None:
        """Takes the next bytes, however they are cut."""
        *complete, rest = (self._partial + data).split(b"\n")
        for line in complete:
            self._line(line)
        if len(rest) > MAX_LINE:
            self._withheld(len(rest))
            self._overlong = True
            rest = b""
        self._partial = rest

    def close(self) -> None:
        """Judges what is left when the output has ended without a newline."""
        if self._partial:
            self._line(self._partial, newline=0)
        self._partial = b""

    def _line(self, line: bytes, newline: int = 1) -> None:
        size = len(line) + newline
        if self._overlong or len(line) > MAX_LINE:
            self._overlong = False
            self._withheld(size)
            return
        verdict = next(self._judge(line.decode("utf-8", "replace").rstrip("\r")), None)
        if verdict is None:
            self._withheld(size)
        elif verdict.text:
            self._kept(verdict)

    def _judge(self, line: str) -> Iterator[Kept]:
        if not line.strip():
            yield Kept("", None, {})
        for rule in self._rules:
            match = rule.compiled.fullmatch(line)
            if match and all(_numeric(value) for value in match.groupdict().values()):
                numbers = match.groupdict()
                yield Kept(rule.text.format(**numbers) if rule.text else "", rule.event, numbers)


def _numeric(value: str | None) -> bool:
    return value is not None and 0 < len(value) <= 20 and all(letter in "0123456789.-" for letter in value)
