"""Writing a replica's objects, each by server-side apply, so that doing it twice is harmless."""

from __future__ import annotations

from typing import Any

from berth.compute.launch import LaunchSpec
from berth.compute.providers.kubernetes import names
from berth.compute.providers.kubernetes.budget import budget_object
from berth.compute.providers.kubernetes.client import ApiClient
from berth.compute.providers.kubernetes.clusters import Cluster, NodeTier
from berth.compute.providers.kubernetes.group import group_object
from berth.compute.providers.kubernetes.kinds import BUDGET, CONFIG_MAP, GROUP, POD, SECRET
from berth.compute.providers.kubernetes.pod import pod_object
from berth.compute.providers.kubernetes.record import owner_of, record_object
from berth.compute.providers.kubernetes.resources import Take
from berth.compute.providers.kubernetes.secret import secret_object

Json = dict[str, Any]


class Writer:
    """Methods raise ProviderUnavailable and Refusal."""

    def __init__(self, client: ApiClient, cluster: Cluster) -> None:
        self._client = client
        self._cluster = cluster
        self._namespace = cluster.namespace

    def record(self, spec: LaunchSpec, now: float, *, anew: bool) -> Json:
        """`anew`: there is one of an earlier run, and what was noted of its end counts no more."""
        record = self._client.apply(CONFIG_MAP, self._namespace, record_object(spec, self._namespace, now))
        if anew:
            record = self.annotate(record, {names.STOP_AT: None, names.END: None}) or record
        return record

    def workload(self, spec: LaunchSpec, secret: str, tier: NodeTier, take: Take, record: Json) -> Json | None:
        """The pod; None for a group, whose pods somebody else makes."""
        owner = owner_of(record)
        self.grants(spec, secret, record)
        if spec.nodes > 1:
            self._client.apply(GROUP, self._namespace, group_object(spec, self._cluster, tier, take, owner))
            return None
        return self._client.apply(POD, self._namespace, pod_object(spec, self._cluster, tier, take, owner))

    def grants(self, spec: LaunchSpec, secret: str, record: Json) -> None:
        """The Secret, as it is or anew."""
        body = secret_object(spec, secret, self._namespace, owner_of(record))
        self._client.apply(SECRET, self._namespace, body)

    def annotate(self, record: Json, annotations: dict[str, str | None]) -> Json | None:
        """None removes one. None if the record is gone."""
        patch = {"metadata": {"uid": record["metadata"]["uid"], "annotations": annotations}}
        return self._client.merge(CONFIG_MAP, self._namespace, record["metadata"]["name"], patch)

    def close_to_the_store(self, pod: Json) -> Json | None:
        """Takes away the label by which a pod may reach the store: it has its files."""
        patch = {"metadata": {"uid": pod["metadata"]["uid"], "labels": {names.FETCHES: None}}}
        return self._client.merge(POD, self._namespace, pod["metadata"]["name"], patch)

    def remove_workload(self, record: Json, pod: Json, *, grace: int) -> Json | None:
        """The pod while it is ending; None once it is gone."""
        if names.pod_of(record) != record["metadata"]["name"]:
            self._client.delete(GROUP, self._namespace, record["metadata"]["name"])
        uid = pod["metadata"]["uid"]
        return self._client.delete(POD, self._namespace, pod["metadata"]["name"], grace=grace, uid=uid)

    def remove_record(self, record: Json) -> None:
        """And with it whatever it owns; the secret at once."""
        metadata = record["metadata"]
        self._client.delete(SECRET, self._namespace, metadata["name"])
        self._client.delete(CONFIG_MAP, self._namespace, metadata["name"], uid=metadata["uid"])

    def budget(self, deployment_id: str, org_id: str, replicas: int, *, needed: bool) -> None:
        """The deployment's disruption budget for so many replicas; without `needed` it goes."""
        if not needed:
            self._client.delete(BUDGET, self._namespace, names.deployment_name(deployment_id))
            return
        protect = self._cluster.drain_blocks and replicas > 0
        body = budget_object(deployment_id, org_id, self._namespace, replicas, protect_last=protect)
        self._client.apply(BUDGET, self._namespace, body)
