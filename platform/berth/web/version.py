"""Which Berth this is."""

from __future__ import annotations

import functools
import tomllib
from importlib import metadata

from django.conf import settings


@functools.cache
def version() -> str:
    """From the installed package or, when run from a checkout, from pyproject.toml."""
    try:
        return metadata.version("berth")
    except metadata.PackageNotFoundError:
        text = (settings.PROJECT_DIR / "pyproject.toml").read_text()
        return str(tomllib.loads(text)["project"]["version"])
