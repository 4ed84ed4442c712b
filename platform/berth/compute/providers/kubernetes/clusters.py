"""What an operator says of their clusters: how to reach each, and which hardware it has. A TOML file, read strictly."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from berth.compute.provider import ProviderError

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_TIER_KEY: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,46}[a-z0-9])?")
_LABEL_KEY: Final = re.compile(
    r"(?:[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE: Final = re.compile(r"(?:[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_DIGEST: Final = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")


class Toleration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """In Kubernetes' own words."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    tolerationSeconds: int | None = None  # noqa: N815 - Kubernetes' name


class NodeTier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of node: what one replica may have of it at most, and how such nodes are found."""

    key: str  # name of the offer
    cores: int  # that one replica may have; less than a node's, if several are to share a node
    memory_gib: float  # that one replica may have of one node
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    gpu: str | None = None  # the planner's name of the device
    gpus: int = 0  # devices of one node that one replica may have
    gpu_resource: str = "nvidia.com/gpu"
    runtime_class: str | None = None  # sandboxed containers, or the GPU vendor's
    nodes: int = 0  # how many nodes there are, where the control plane may not read them; 0: they are read
    autoscaled: bool = False  # nodes are added when pods wait: then pods do wait, instead of being refused
    price_per_hour: str | None = None  # of one replica, in the operator's currency; a decimal
    max_nodes_per_replica: int = 1  # above 1: LeaderWorkerSet is installed and this tier may be used across nodes

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * (1 << 30))

    @property
    def price(self) -> Decimal | None:
        return None if self.price_per_hour is None else Decimal(self.price_per_hour)


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cluster and the namespace in it that belongs to replicas."""

    name: str
    namespace: str
    image: str  # of the runtime, by digest
    tier: tuple[NodeTier, ...]
    region: str | None = None
    in_cluster: bool = False  # the control plane runs in this cluster: its own service account is used
    kubeconfig: str | None = None  # else: path of a kubeconfig file
    context: str | None = None  # None: the file's current one
    allow_exec: bool = False  # run the credential program that the kubeconfig names
    models_claim: str | None = None  # PersistentVolumeClaim with the model store, mounted read-only
    cache_gib: float = 0.0  # room in each pod for files that it fetches itself; 0: none is fetched
    service_account: str = "berth-runtime"  # has no rights and no token
    priority_class: str | None = None
    image_pull_secret: str | None = None
    see_all_pods: bool = False  # subtract also what pods of other namespaces take from a node
    drain_blocks: bool = False  # a node cannot be drained while it has a deployment's only replica
    unguarded: bool = False  # start replicas although no NetworkPolicy denies everything by default
    ip_family: Literal["ipv4", "ipv6"] = "ipv4"
    engine_port: int = 8000
    status_port: int = 8001

    def tier_named(self, key: str) -> NodeTier | None:
        """The tier of this key; the only tier there is when no key is given."""
        if not key and len(self.tier) == 1:
            return self.tier[0]
        return next((tier for tier in self.tier if tier.key == key), None)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cluster: tuple[Cluster, ...]


def read_clusters(path: Path) -> tuple[Cluster, ...]:
    """Every cluster of the file, checked. Raises ProviderError with a sentence that names what is wrong."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise ProviderError(f"The list of clusters {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProviderError(f"The list of clusters {path} is no TOML: {error}.") from None
    return clusters_from(document, str(path))


def clusters_from(document: Mapping[str, Any], where: str = "The list of clusters") -> tuple[Cluster, ...]:
    """The same from what the file says. Raises ProviderError."""
    try:
        clusters = msgspec.convert(document, type=_File).cluster
    except msgspec.ValidationError as error:
        raise ProviderError(f"{where}: {error}.") from None
    problem = _problem(clusters)
    if problem:
        raise ProviderError(f"{where}: {problem}")
    return clusters


def _problem(clusters: tuple[Cluster, ...]) -> str | None:
    if not clusters:
        return "it names no cluster."
    names = [cluster.name for cluster in clusters]
    if len(set(names)) < len(names):
        return "two clusters have the same name."
    keys = [tier.key for cluster in clusters for tier in cluster.tier]
    if len(set(keys)) < len(keys):
        return "two tiers have the same key; keys are unique over all clusters, because deployments name them."
    for cluster in clusters:
        problem = _cluster_problem(cluster) or next(filter(None, map(_tier_problem, cluster.tier)), None)
        if problem:
            return f"cluster {cluster.name}: {problem}"
    return None


def _cluster_problem(cluster: Cluster) -> str | None:
    named = (cluster.name, cluster.namespace, cluster.service_account)
    rules = (
        (all(_DNS_LABEL.fullmatch(each) for each in named), "name, namespace and service_account are DNS labels."),
        (
            _DIGEST.fullmatch(cluster.image) is not None,
            "image must name a digest (…@sha256:…): a tag can be moved to another image.",
        ),
        (cluster.in_cluster != (cluster.kubeconfig is not None), "give either in_cluster = true or a kubeconfig."),
        (bool(cluster.tier), "it has no tier."),
        (
            cluster.models_claim is not None or cluster.cache_gib > 0,
            "give models_claim, or cache_gib for files that pods fetch.",
        ),
        (1024 <= cluster.engine_port < 65536 and 1024 <= cluster.status_port < 65536, "ports are from 1024 to 65535."),
        (cluster.engine_port != cluster.status_port, "engine_port and status_port must differ."),
    )
    return next((text for holds, text in rules if not holds), None)


def _tier_problem(tier: NodeTier) -> str | None:
    selectors_fit = all(
        _LABEL_KEY.fullmatch(key) and _LABEL_VALUE.fullmatch(value) for key, value in tier.node_selector.items()
    )
    rules = (
        (
            _TIER_KEY.fullmatch(tier.key) is not None,
            "its key must be of at most 48 lower-case letters, digits, '.', '_' and '-'.",
        ),
        (tier.cores >= 1 and tier.memory_gib >= 1, "it needs at least 1 core and 1 GiB."),
        (selectors_fit, "node_selector must hold labels."),
        ((tier.gpu is None) == (tier.gpus == 0), "gpu and gpus belong together."),
        (
            not tier.gpu_resource.endswith(".shared"),
            "shared devices mix tenants in one GPU's memory and are not used.",
        ),
        (_is_price(tier.price_per_hour), "price_per_hour must be a decimal in quotes, such as '0.80'."),
        (1 <= tier.max_nodes_per_replica <= 64, "max_nodes_per_replica must be from 1 to 64."),
    )
    return next((f"tier {tier.key}: {text}" for holds, text in rules if not holds), None)


def _is_price(text: str | None) -> bool:
    try:
        return text is None or Decimal(text) >= 0
    except InvalidOperation:
        return False
