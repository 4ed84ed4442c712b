"""Replicas are started only where everything is denied by default: a namespace without such a policy is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from berth.compute.provider import ProviderUnavailable
from berth.compute.providers.kubernetes.client import ApiClient
from berth.compute.providers.kubernetes.kinds import NETWORK_POLICY

_BELIEVED_SECONDS: Final = 60.0


class Guard:
    """Remembers for a minute that a namespace is guarded."""

    def __init__(self, client: ApiClient, namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._seen_at = float("-inf")

    def require(self) -> None:
        """Raises ProviderUnavailable."""
        if self._clock() - self._seen_at < _BELIEVED_SECONDS:
            return
        policies, _ = self._client.list(NETWORK_POLICY, self._namespace)
        if not any(map(denies_everything, policies)):
            raise ProviderUnavailable(
                f"The namespace {self._namespace} has no NetworkPolicy that denies everything by default, so replicas could reach "
                "the network. Install the chart's policies, or set unguarded = true if something else guards it."
            )
        self._seen_at = self._clock()


def denies_everything(policy: Mapping[str, Any]) -> bool:
    """Whether it selects every pod and allows it nothing, in both directions."""
    spec = policy.get("spec") or {}
    selector = spec.get("podSelector") or {}
    types = spec.get("policyTypes") or []
    return (
        not any(selector.values())
        and {"Ingress", "Egress"} <= set(types)
        and not spec.get("ingress")
        and not spec.get("egress")
    )
