"""The kinds of objects that are read or written, and where the API has them."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec


class Kind(msgspec.Struct, frozen=True):
    group: str  # "" is the core group
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """URL path of one object, or of all of them."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts += [self.plural, *([name] if name else []), *([sub] if sub else [])]
        return "/" + "/".join(quote(part, safe="") for part in parts)


POD: Final = Kind("", "v1", "Pod", "pods")
CONFIG_MAP: Final = Kind("", "v1", "ConfigMap", "configmaps")
SECRET: Final = Kind("", "v1", "Secret", "secrets")
EVENT: Final = Kind("", "v1", "Event", "events")
NODE: Final = Kind("", "v1", "Node", "nodes", namespaced=False)
BUDGET: Final = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
GROUP: Final = Kind("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets")
