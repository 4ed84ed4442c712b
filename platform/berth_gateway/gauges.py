"""What `/metrics` reads off a gateway at the moment it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from berth_gateway.fast import FastExchange
from berth_gateway.route import address

if TYPE_CHECKING:
    from berth_gateway.gateway import Gateway


def of_process(gateway: Gateway) -> dict[str, Callable[[], float]]:
    """Without labels."""
    store, spool = gateway.store, gateway.spool
    return {
        "berth_gateway_in_flight": lambda: len(gateway.exchanges),
        "berth_gateway_queued": gateway.places.all_waiting,
        "berth_gateway_reserved_tokens": lambda: sum(
            x.reserved_tokens if isinstance(x, FastExchange) else x.permit.demand.tokens for x in gateway.exchanges
        ),
        "berth_gateway_limits_waiting": lambda: len(gateway.gate.waiting),
        "berth_gateway_limits_contact": lambda: int(gateway.gate.connected),
        "berth_gateway_connections": lambda: len(gateway.clients),
        "berth_gateway_spool_pending": lambda: spool.pending,
        "berth_gateway_spool_failures": lambda: spool.failures,
        "berth_gateway_spool_torn": lambda: spool.torn,
        "berth_gateway_spool_recovered": lambda: spool.recovered,
        "berth_gateway_snapshot_version": lambda: store.view.version if store.view else 0,
        "berth_gateway_snapshot_age_seconds": lambda: gateway.wall() - store.confirmed_at if store.view else -1,
    }


def of_deployments(gateway: Gateway) -> dict[str, Callable[[], Mapping[tuple[str, ...], float]]]:
    """By deployment, or by deployment and replica."""

    def replicas_up() -> dict[tuple[str, ...], float]:
        """Only of replicas in the applied snapshot, so that those that are gone are no labels."""
        routes = gateway.store.view.routes.values() if gateway.store.view else ()
        ill = gateway.router.health.is_ill
        return {(r.deployment_id, each.name): float(not ill(address(each))) for r in routes for each in r.replicas}

    return {
        "berth_gateway_deployment_in_flight": lambda: {(d,): n for d, n in gateway.loads.in_flight().items()},
        "berth_gateway_replica_up": replicas_up,
    }
