"""What ships is under a licence that a company can ship (docs/decisions/0004)."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
SHIPPED = ("platform", "gateway", "runtime", "host", "sample-model")
ACCEPTED = re.compile(
    r"\b(MIT|BSD|Apache|PSF|MPL|Mozilla|ISC|Zlib|Python Software Foundation|Unlicense)", re.IGNORECASE
)
REFUSED = re.compile(r"\b(A?GPL|GNU (Affero )?General|SSPL|BUSL|Business Source|non-?commercial)", re.IGNORECASE)
LGPL_ACCEPTED = {"psycopg", "psycopg-binary", "psycopg-pool"}


def shipped_packages() -> list[str]:
    found = set()
    for part in SHIPPED:
        for line in (REQUIREMENTS / f"{part}.txt").read_text().splitlines():
            if match := re.match(r"([A-Za-z0-9_.-]+)==", line):
                found.add(match.group(1).lower())
    return sorted(found)


def licence_of(package: str) -> str:
    about = metadata.metadata(package)
    classifiers = [c for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    return " | ".join([about.get("License-Expression") or "", (about.get("License") or "")[:200], *classifiers])


@pytest.mark.threat("S1")
def test_every_shipped_package_has_an_accepted_licence() -> None:
    problems = {}
    checked = 0
    for package in shipped_packages():
        try:
            licence = licence_of(package)
        except metadata.PackageNotFoundError:
            continue  # for another system or Python version, by its marker
        checked += 1
        if package in LGPL_ACCEPTED and "LGPL" in licence:
            continue
        if REFUSED.search(licence) or not ACCEPTED.search(licence):
            problems[package] = licence
    assert problems == {}
    assert checked > 40


@pytest.mark.threat("S1")
def test_every_requirement_is_pinned_with_a_hash() -> None:
    for file in REQUIREMENTS.glob("*.txt"):
        text = file.read_text()
        names = re.findall(r"^[A-Za-z0-9_.-]+==\S+", text, re.MULTILINE)
        blocks = re.split(r"^(?=[A-Za-z0-9_.-]+==)", text, flags=re.MULTILINE)[1:]
        assert len(names) == len(blocks) > 0, file.name
        assert all("--hash=sha256:" in block for block in blocks), file.name
        assert not re.search(r"https?://|index-url", text), f"{file.name} names a host"
