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
        cgroup=settings.CGROUP,
        region=settings.REGION,
    )


def _kubernetes() -> Provider:
    if not settings.KUBERNETES_FILE:
        raise ProviderUnavailable(
            "BERTH_PROVIDER is kubernetes and BERTH_KUBERNETES_FILE is not set: no cluster is known (docs/kubernetes.md)."
        )
    # Not at the top: one machine needs none of it, and its start is waited for.
    from berth.compute.providers.kubernetes.clusters import read_clusters
    from berth.compute.providers.kubernetes.credentials import credentials_of
    from berth.compute.providers.kubernetes.fleet import Fleet
    from berth.compute.providers.kubernetes.provider import ClusterProvider

    clusters = read_clusters(Path(settings.KUBERNETES_FILE))
    return Fleet(ClusterProvider(cluster, credentials_of(cluster)) for cluster in clusters)


_PROVIDERS: dict[str, Callable[[], Provider]] = {"local": _local, "kubernetes": _kubernetes}


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
