"""Providers by name, made from Django's settings once per process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from django.conf import settings

from berth.compute.provider import Provider, ProviderUnavailable
from berth.compute.providers.local import LocalProvider


def _local() -> Provider:
    source_root = Path(__file__).resolve().parents[3] / "runtime"
    return LocalProvider(
        settings.BERTH_HOME,
        python=Path(sys.executable),
        # Installed as a package, the runtime is found without help.
        python_path=(source_root,) if source_root.is_dir() else (),
        lifeline=settings.BERTH_LIFELINE,
    )


_PROVIDERS: dict[str, Callable[[], Provider]] = {"local": _local}


def provider_names() -> list[str]:
    """The providers that can be named in a setting or a deployment."""
    return sorted(_PROVIDERS)


@cache
def provider_named(name: str) -> Provider:
    """The provider of this name. Raises ProviderUnavailable if there is none."""
    make = _PROVIDERS.get(name)
    if make is None:
        raise ProviderUnavailable(f"There is no provider called {name}. Choose one of: {', '.join(provider_names())}.")
    return make()


def default_provider() -> Provider:
    """The provider that the setting BERTH_PROVIDER names."""
    return provider_named(settings.PROVIDER)
