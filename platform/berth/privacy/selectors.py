"""What gateways may know of policies. Read by publishing."""

from __future__ import annotations

from typing import NamedTuple

from berth.privacy.models import PrivacyPolicy, SealingKey
from berth_gateway.contract import Recording


class Recordings(NamedTuple):
    """By organisation id, where records are wanted; and the deployments and keys that are left out."""

    orgs: dict[str, Recording]
    left_out: frozenset[str]  # ids of deployments and of keys
    padded: frozenset[str]  # ids of organisations whose answers are filled up
    keys_apart: frozenset[str]  # ids of organisations whose keys share no prefixes


def recordings() -> Recordings:
    every = list(PrivacyPolicy.objects.across_orgs("gateways keep the policies of every organisation"))
    policies = [policy for policy in every if policy.recording]
    wanting = {policy.org_id for policy in policies}
    keys = SealingKey.objects.across_orgs("gateways seal for every organisation").filter(
        destroyed_at=None, org__in=wanting
    )
    return Recordings(
        orgs={str(key.org_id): Recording(key_id=str(key.pk), public_key=bytes(key.public_key)) for key in keys},
        padded=frozenset(str(policy.org_id) for policy in every if policy.padded),
        keys_apart=frozenset(str(policy.org_id) for policy in every if policy.keys_apart),
        left_out=frozenset(
            str(each) for policy in policies for each in (*policy.excluded_deployment_ids, *policy.excluded_key_ids)
        ),
    )
