"""Providers are found by the name in a setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from berth.compute import registry
from berth.compute.provider import ProviderUnavailable
from berth.compute.providers.local import LocalProvider


def test_the_setting_names_the_provider(settings: Any, tmp_path: Path) -> None:
    registry.provider_named.cache_clear()
    settings.BERTH_HOME, settings.BERTH_LIFELINE, settings.PROVIDER = tmp_path, None, "local"
    try:
        provider = registry.default_provider()
        assert isinstance(provider, LocalProvider)
        assert provider is registry.provider_named("local")
        assert provider.observe_all() == []
    finally:
        registry.provider_named.cache_clear()


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(ProviderUnavailable, match="Choose one of: kubernetes, local"):
        registry.provider_named("moon")


def test_kubernetes_needs_a_list_of_clusters(settings: Any) -> None:
    settings.KUBERNETES_FILE = ""
    registry.provider_named.cache_clear()
    with pytest.raises(ProviderUnavailable, match="BERTH_KUBERNETES_FILE"):
        registry.provider_named("kubernetes")
