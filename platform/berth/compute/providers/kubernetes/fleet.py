"""Several clusters as one provider. A deployment's tier says in which it runs; one that is away holds up only its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from berth.compute.launch import LaunchSpec
from berth.compute.provider import Capacity, LogPage, ObservedReplica, Offer, ProviderError, ProviderUnavailable
from berth.compute.providers.kubernetes.provider import ClusterProvider

_T = TypeVar("_T")


class Fleet:
    """See `Provider`."""

    name = "kubernetes"

    def __init__(self, clusters: Iterable[ClusterProvider]) -> None:
        self._clusters = tuple(clusters)

    def offers(self) -> list[Offer]:
        """Of every cluster that answers."""
        found = [offer for offers in self._asked(lambda cluster: cluster.offers()) for offer in offers]
        return sorted(found, key=lambda offer: (offer.price_per_hour is None, offer.price_per_hour or 0, offer.key))

    def capacity(self) -> Capacity:
        found = self._asked(lambda cluster: cluster.capacity())
        return Capacity(
            cores=sum(each.cores for each in found),
            memory_bytes=sum(each.memory_bytes for each in found),
            free_memory_bytes=sum(each.free_memory_bytes for each in found),
            replicas=sum(each.replicas for each in found),
        )

    def start(self, spec: LaunchSpec, secret: str) -> None:
        for cluster in self._clusters:
            if (spec.tier or len(self._clusters) == 1) and cluster.cluster.tier_named(spec.tier) is not None:
                cluster.start(spec, secret)
                return
        raise ProviderError(f"No cluster has a tier called {spec.tier!r}. Plan the deployment anew.")

    def renew(self, spec: LaunchSpec, secret: str) -> None:
        for cluster in self._that_have(spec.replica):
            cluster.renew(spec, secret)

    def observe(self, deployment_id: str) -> list[ObservedReplica]:
        """Raises ProviderUnavailable if a cluster is away that had replicas of it, or that was never seen."""
        seen: list[ObservedReplica] = []
        for cluster in self._clusters:
            try:
                seen += cluster.observe(deployment_id)
            except ProviderUnavailable:
                if cluster.holds(deployment_id) is not False:
                    raise
        return sorted(seen, key=lambda replica: replica.name)

    def observe_all(self) -> list[ObservedReplica]:
        """Of every cluster that answers: who misses a replica here asks for its deployment, and hears why."""
        found = [replica for seen in self._asked(lambda cluster: cluster.observe_all()) for replica in seen]
        return sorted(found, key=lambda replica: replica.name)

    def stop(self, replica: str, *, drain_seconds: int) -> None:
        for cluster in self._that_have(replica):
            cluster.stop(replica, drain_seconds=drain_seconds)

    def forget(self, replica: str) -> None:
        for cluster in self._that_have(replica):
            cluster.forget(replica)

    def logs(self, replica: str, after: int = 0, limit: int = 200) -> LogPage:
        for cluster in self._that_have(replica):
            return cluster.logs(replica, after, limit)
        return LogPage((), after, more=False)

    def close(self) -> None:
        """Ends the watches."""
        for cluster in self._clusters:
            cluster.close()

    def _that_have(self, replica: str) -> list[ClusterProvider]:
        """Raises ProviderUnavailable if none that answers has it and one is away."""
        found, away = [], None
        for cluster in self._clusters:
            try:
                if cluster.has(replica):
                    found.append(cluster)
            except ProviderUnavailable as error:
                away = error
        if not found and away is not None:
            raise away
        return found

    def _asked(self, ask: Callable[[ClusterProvider], _T]) -> list[_T]:
        """The answers of those that answer. Raises ProviderUnavailable if none does."""
        answers: list[_T] = []
        away: ProviderUnavailable | None = None
        for cluster in self._clusters:
            try:
                answers.append(ask(cluster))
            except ProviderUnavailable as error:
                away = error
        if away is not None and not answers:
            raise away
        return answers
