"""The documentation keeps up with the code: settings, endpoints, metrics and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import berth.env
import berth_gateway.config
import berth_gateway.telemetry
import berth_runtime.config

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REGISTRIES = {
    "berth.env": berth.env.SETTINGS,
    "berth_gateway.config": berth_gateway.config.SETTINGS,
    "berth_runtime.config": berth_runtime.config.SETTINGS,
}


def documented_settings() -> set[str]:
    return set(re.findall(r"^\| `([A-Z][A-Z0-9_]+)` \|", (DOCS / "settings.md").read_text(), re.MULTILINE))


def test_every_setting_is_documented_and_every_documented_setting_exists() -> None:
    declared = {setting.name for settings in REGISTRIES.values() for setting in settings}
    assert declared == documented_settings()


def test_the_documented_defaults_are_the_real_ones() -> None:
    text = (DOCS / "settings.md").read_text()
    for settings in REGISTRIES.values():
        for setting in settings:
            shown = f"`{setting.default}`" if setting.default else "–"
            assert f"| `{setting.name}` | {shown} |" in text, setting.name


@pytest.mark.parametrize("root", ["platform", "runtime"])
def test_no_environment_variable_is_read_behind_the_registries_back(root: str) -> None:
    """Names that begin with BERTH_ appear in code only if a registry declares them."""
    declared = {setting.name for settings in REGISTRIES.values() for setting in settings}
    found = set()
    for file in (ROOT / root).rglob("*.py"):
        found |= set(re.findall(r"[\"'](BERTH_[A-Z0-9_]+)[\"']", file.read_text()))
    internal = {"BERTH_LIFELINE"}  # Django's name for a path below BERTH_HOME, no variable
    assert found - declared - internal == set()


def test_every_gateway_metric_is_documented() -> None:
    text = (DOCS / "gateway.md").read_text()
    names = {metric.name for metric in berth_gateway.telemetry.METRICS}
    assert len(names) > 5
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert broken == []


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make up" in text
    assert "make test" in text
