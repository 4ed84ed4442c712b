"""The disruption budget of a deployment: what a node's drain may take of it at a time."""

from __future__ import annotations

from typing import Any

from berth.compute.providers.kubernetes import names
from berth.compute.providers.kubernetes.kinds import BUDGET


def budget_object(
    deployment_id: str, org_id: str, namespace: str, replicas: int, *, protect_last: bool
) -> dict[str, Any]:
    """One replica at a time may go; the only one may go too, unless it is protected.

    A whole number, because budgets of pods without a controller know no percentages and no maxUnavailable.
    """
    deployment = names.label_value(deployment_id)
    return {
        "apiVersion": BUDGET.api_version,
        "kind": BUDGET.kind,
        "metadata": {
            "name": names.deployment_name(deployment_id),
            "namespace": namespace,
            "labels": {
                names.MANAGED_BY: names.MANAGER,
                names.PART: "budget",
                names.ORG: names.label_value(org_id),
                names.DEPLOYMENT: deployment,
            },
        },
        "spec": {
            "minAvailable": max(replicas - 1, 1 if protect_last else 0),
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {names.PART: "replica", names.DEPLOYMENT: deployment}},
        },
    }
