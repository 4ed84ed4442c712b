"""Replicas as pods of one cluster. See docs/kubernetes.md for how, and decisions/ for why bare pods."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from berth.compute.launch import LaunchSpec
from berth.compute.provider import (
    Capacity,
    LogPage,
    NoCapacity,
    ObservedReplica,
    Offer,
    ProviderError,
    ProviderUnavailable,
)
from berth.compute.providers.kubernetes import names, reasons
from berth.compute.providers.kubernetes.capacity import TierRoom, offer_of, rooms_of, slim_node, waiting_pods
from berth.compute.providers.kubernetes.client import ApiClient
from berth.compute.providers.kubernetes.clusters import Cluster, NodeTier
from berth.compute.providers.kubernetes.credentials import Credentials
from berth.compute.providers.kubernetes.errors import Refusal
from berth.compute.providers.kubernetes.guard import Guard
from berth.compute.providers.kubernetes.hearing import Hearing
from berth.compute.providers.kubernetes.journal import log_lines
from berth.compute.providers.kubernetes.kinds import CONFIG_MAP, NODE, POD
from berth.compute.providers.kubernetes.mirror import Mirror
from berth.compute.providers.kubernetes.observation import Sight, observed, over
from berth.compute.providers.kubernetes.pod import END_SECONDS, told_spec
from berth.compute.providers.kubernetes.reasons import CONTAINER
from berth.compute.providers.kubernetes.record import without_data
from berth.compute.providers.kubernetes.resources import Take, take_of
from berth.compute.providers.kubernetes.starting import as_start_error
from berth.compute.providers.kubernetes.tending import Tender
from berth.compute.providers.kubernetes.writing import Writer

Json = dict[str, Any]

_STILL_ENDING: Final = "The replica is still ending. Try again in a moment."


class ClusterProvider:
    """See `Provider`. One cluster, one namespace; several clusters are a `Fleet`."""

    name = "kubernetes"

    def __init__(self, cluster: Cluster, credentials: Credentials, clock: Callable[[], float] = time.time) -> None:
        self.cluster = cluster
        self._clock = clock
        self._client = ApiClient(credentials, cluster.name)
        self._writer = Writer(self._client, cluster)
        self._guard = Guard(self._client, cluster.namespace)
        self._records = Mirror(self._client, CONFIG_MAP, cluster.namespace, names.OURS, slim=without_data)
        self._pods = Mirror(self._client, POD, cluster.namespace, names.OURS)
        self._nodes = Mirror(self._client, NODE, None, slim=slim_node) if _reads_nodes(cluster) else None
        self._all_pods = Mirror(self._client, POD, None, slim=_slim_pod) if cluster.see_all_pods else self._pods
        self._hearing = Hearing(self._client, cluster.namespace)
        self._tender = Tender(self._writer, self._records, self._pods)

    # What there is

    def offers(self) -> list[Offer]:
        offers = [offer_of(self._room(tier), self.cluster) for tier in self.cluster.tier]
        return sorted(offers, key=lambda offer: (offer.price_per_hour is None, offer.price_per_hour or 0, offer.key))

    def capacity(self) -> Capacity:
        rooms = [self._room(tier) for tier in self.cluster.tier]
        return Capacity(
            cores=sum(each.cores for room in rooms for each in room.all) // 1000,
            memory_bytes=sum(each.memory for room in rooms for each in room.all),
            free_memory_bytes=sum(each.memory for room in rooms for each in room.free),
            replicas=sum(
                sight.pod is not None and not over(sight) for sight in self._sights(self._records.all(), hear=False)
            ),
        )

    def holds(self, deployment_id: str) -> bool | None:
        """Whether replicas of the deployment were here when the cluster was last seen; None: it never was."""
        known = self._records.known()
        return None if known is None else any(_deployment(record) == deployment_id for record in known)

    def has(self, replica: str) -> bool:
        """Whether the replica is here. Raises ProviderUnavailable."""
        return self._records.get(names.object_name(replica)) is not None

    # Starting

    def start(self, spec: LaunchSpec, secret: str) -> None:
        name = names.object_name(spec.replica)
        tier = self.cluster.tier_named(spec.tier)
        if tier is None:
            raise ProviderError(f"Cluster {self.cluster.name} has no tier called {spec.tier}.")
        spec = msgspec.structs.replace(spec, tier=tier.key)
        take = take_of(spec, tier, self.cluster)
        told = told_spec(spec, self.cluster)
        record = self._client.get(CONFIG_MAP, self.cluster.namespace, name)
        if record is not None and self._is_alive(record):
            return
        if not self.cluster.unguarded:
            self._guard.require()
        self._require_room(tier, take, spec.nodes)
        try:
            record = self._writer.record(told, self._clock(), anew=record is not None)
            self._records.put(without_data(record))
            pod = self._writer.workload(told, secret, tier, take, record)
        except Refusal as refused:
            raise as_start_error(refused, self.cluster, group=spec.nodes > 1) from None
        if pod is not None:
            self._pods.put(pod)
        self._keep_budget(spec.deployment_id, spec.org_id)

    def renew(self, spec: LaunchSpec, secret: str) -> None:
        """A pod mounts its Secret when it gets a node, which may be long after it was made."""
        record = self._records.get(names.object_name(spec.replica))
        if record is None or {names.STOP_AT, names.END} & (record["metadata"].get("annotations") or {}).keys():
            return
        tier = self.cluster.tier_named(spec.tier)
        told = told_spec(msgspec.structs.replace(spec, tier=tier.key if tier else spec.tier), self.cluster)
        self._writer.grants(told, secret, record)

    def _is_alive(self, record: Json) -> bool:
        """Whether nothing is to be done. What has ended is cleared away, so that its name is free."""
        pod = self._read_pod(record)
        if pod is None:
            return False
        sight = Sight(record, pod, self._node_of(pod), None)
        if not over(sight):
            if "deletionTimestamp" in pod["metadata"]:
                raise ProviderUnavailable(_STILL_ENDING)
            return True
        self._writer.remove_workload(record, pod, grace=0)
        if self._read_pod(record) is not None:
            raise ProviderUnavailable(_STILL_ENDING)
        self._pods.drop(pod)
        return False

    def _require_room(self, tier: NodeTier, take: Take, nodes: int) -> None:
        """A pool that does not grow refuses what it cannot hold; the reconciler then queues the deployment and says so."""
        if tier.autoscaled or self._room(tier).holds(take, nodes):
            return
        pending = waiting_pods(self._pods.all(), tier)
        what = (
            f"{take.gpus} free {(tier.gpu or '').upper()}" if take.gpus else f"{take.memory >> 20} MiB of free memory"
        )
        raise NoCapacity(
            f"No node of tier {tier.key} has {what} and {take.cores} free cores; {pending} pending. "
            "Stop another deployment, add a node, or choose another tier."
        )

    # Seeing

    def observe(self, deployment_id: str) -> list[ObservedReplica]:
        return self._observed([record for record in self._records.all() if _deployment(record) == deployment_id])

    def observe_all(self) -> list[ObservedReplica]:
        records = self._records.all()
        self._hearing.keep_only({pod["metadata"]["uid"] for pod in self._pods.all()})
        return self._observed(records)

    def _observed(self, records: Iterable[Json]) -> list[ObservedReplica]:
        now = self._clock()
        seen = []
        for sight in self._sights(records):
            record = self._tender.tend(sight, now) or sight.record
            replica = observed(msgspec.structs.replace(sight, record=record), self.cluster, now)
            if sight.pod is not None and not replica.alive and names.is_group(record):
                self._tender.end_group(record, sight.pod, replica)
            seen.append(replica)
        return sorted(seen, key=lambda replica: replica.name)

    def _sights(self, records: Iterable[Json], *, hear: bool = True) -> list[Sight]:
        records = list(records)
        pods = {pod["metadata"]["name"]: pod for pod in self._pods.all()}
        nodes = {node["metadata"]["name"]: node for node in self._nodes.all()} if self._nodes else {}
        pending = {tier.key: waiting_pods(pods.values(), tier) for tier in self.cluster.tier}
        mine = {record["metadata"]["name"]: pods.get(names.pod_of(record)) for record in records}
        told = self._hearing.of([pod for pod in mine.values() if pod]) if hear else {}
        return [
            Sight(
                record=record,
                pod=pod,
                node=nodes.get(pod["spec"].get("nodeName", "")) if pod else None,
                told=told.get(pod["metadata"]["uid"]) if pod else None,
                pending=pending.get(record["metadata"]["labels"].get(names.TIER, ""), 1),
                departed=self._pods.departed(names.pod_of(record)),
            )
            for record in records
            for pod in [mine[record["metadata"]["name"]]]
        ]

    # Ending

    def stop(self, replica: str, *, drain_seconds: int) -> None:
        record = self._client.get(CONFIG_MAP, self.cluster.namespace, names.object_name(replica))
        pod = self._read_pod(record) if record else None
        if record is None or (pod is not None and over(Sight(record, pod, self._node_of(pod), None))):
            return
        if pod is None and names.END in (record["metadata"].get("annotations") or {}):
            return
        noted = record["metadata"].get("annotations") or {}
        # What the cluster takes away by itself is no stop of ours, although we let it finish the same way.
        if not {names.STOP_AT, names.END} & noted.keys() and (pod is None or reasons.disrupted(pod) is None):
            record = self._writer.annotate(record, {names.STOP_AT: repr(self._clock())}) or record
            self._records.put(without_data(record))
        if pod is not None:
            running = pod.get("status", {}).get("phase") == "Running"
            ending = self._writer.remove_workload(
                record, pod, grace=max(drain_seconds, 0) + END_SECONDS if running else 0
            )
            self._pods.put(ending) if ending else self._pods.drop(pod)
        annotations = record["metadata"]["annotations"]
        self._keep_budget(annotations[names.DEPLOYMENT], annotations[names.ORG])

    def forget(self, replica: str) -> None:
        name = names.object_name(replica)
        record = self._client.get(CONFIG_MAP, self.cluster.namespace, name)
        if record is None:
            return
        pod = self._read_pod(record)
        if pod is not None:
            if not over(Sight(record, pod, self._node_of(pod), None)):
                return
            self._writer.remove_workload(record, pod, grace=0)
            self._pods.drop(pod)
        self._writer.remove_record(record)
        self._records.drop(record)
        annotations = record["metadata"]["annotations"]
        self._keep_budget(annotations[names.DEPLOYMENT], annotations[names.ORG])

    def _keep_budget(self, deployment_id: str, org_id: str) -> None:
        records = [record for record in self._records.all() if _deployment(record) == deployment_id]
        staying = sum(names.STOP_AT not in (record["metadata"].get("annotations") or {}) for record in records)
        self._writer.budget(deployment_id, org_id, staying, needed=bool(records))

    # Logs

    def logs(self, replica: str, after: int = 0, limit: int = 200) -> LogPage:
        record = self._records.get(names.object_name(replica))
        text = None
        if record is not None:
            text = self._client.log(self.cluster.namespace, names.pod_of(record), CONTAINER)
        lines = [line for line in log_lines(text or b"") if line.number > after]
        page = tuple(lines[: max(limit, 0)])
        return LogPage(page, page[-1].number if page else after, more=len(lines) > len(page))

    # How

    def close(self) -> None:
        """Ends the watches."""
        for mirror in filter(None, (self._records, self._pods, self._nodes, self._all_pods)):
            mirror.close()

    def _room(self, tier: NodeTier) -> TierRoom:
        nodes = None if tier.nodes or self._nodes is None else self._nodes.all()
        return rooms_of(tier, nodes, self._all_pods.all())

    def _read_pod(self, record: Json) -> Json | None:
        return self._client.get(POD, self.cluster.namespace, names.pod_of(record))

    def _node_of(self, pod: Json) -> Json | None:
        name = pod["spec"].get("nodeName")
        if not name or self._nodes is None:
            return None
        return next((node for node in self._nodes.all() if node["metadata"]["name"] == name), None)


def _deployment(record: Json) -> str:
    return str((record["metadata"].get("annotations") or {}).get(names.DEPLOYMENT, ""))


def _reads_nodes(cluster: Cluster) -> bool:
    return any(not tier.nodes for tier in cluster.tier)


def _slim_pod(pod: Json) -> Json:
    """What of another namespace's pod is used here: where it is and what it asks for."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    kept = ("nodeName", "overhead")
    return {
        "metadata": {
            k: metadata[k] for k in ("name", "namespace", "uid", "resourceVersion", "labels") if k in metadata
        },
        "spec": {k: spec[k] for k in kept if k in spec}
        | {
            kind: [{"resources": each.get("resources") or {}} for each in spec.get(kind) or []]
            for kind in ("containers", "initContainers")
        },
        "status": {"phase": pod.get("status", {}).get("phase")},
    }
