from collections.abc import Collection
from uuid import UUID

from django.apps import AppConfig


class DeploymentsConfig(AppConfig):
    name = "berth.deployments"
    label = "deployments"

    def ready(self) -> None:
        from berth.catalog.uses import register_use_lookup
        from berth.deployments.selectors import names_by_model
        from berth.keys.hooks import register_deployment_lookup

        register_deployment_lookup(_existing)
        register_use_lookup(names_by_model)


def _existing(org_id: UUID, wanted: Collection[UUID]) -> set[UUID]:
    """Which of these are deployments of the organisation: what an API key may be limited to."""
    from berth.deployments.models import Deployment, State

    rows = Deployment.objects.for_org(org_id).filter(pk__in=wanted).exclude(state=State.DELETED)
    return set(rows.values_list("pk", flat=True))
