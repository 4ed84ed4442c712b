"""What gateways may know: keys, organisations and all the rest, under a version that only rises."""

from __future__ import annotations

import msgspec

from berth_gateway.contract.limits import Budget, Limits, MemberInfo
from berth_gateway.contract.records import Recording
from berth_gateway.contract.routes import Route

SNAPSHOT_FORMAT = 1


class KeyInfo(msgspec.Struct, frozen=True):
    """An API key that may call. Revoked keys are not in a snapshot at all; expired ones stay 30 days, so that the answer can say so."""

    digest: bytes  # SHA-256 of the whole secret
    key_id: str
    org_id: str
    scopes: tuple[str, ...] = ("inference",)
    deployment_ids: tuple[str, ...] | None = None  # None: every deployment of the organisation
    expires_at: int | None = None  # Unix seconds
    member_id: str | None = None  # whose key it is; None for service keys
    limits: Limits | None = None
    networks: tuple[str, ...] = ()  # CIDR: where it may be used from; empty: anywhere
    recorded: bool = True  # False: none of its requests is kept, whatever the organisation wishes


class OrgInfo(msgspec.Struct, frozen=True):
    org_id: str
    slug: str
    suspended: bool = False
    origins: tuple[str, ...] = ()  # browser origins that may call with CORS
    limits: Limits | None = None
    weight: int = 1  # its share where organisations wait for the same replicas
    recording: Recording | None = None  # None: nothing of its requests is kept
    padded: bool = False  # answers are filled up to fixed sizes, so that their packets say less
    keys_apart: bool = False  # no API key finds what another has left in an engine's prefix cache


class Snapshot(msgspec.Struct, frozen=True):
    """Everything gateways may know. Within an epoch (one database's life) versions only rise."""

    format: int
    epoch: str
    version: int
    issued_at: int  # Unix seconds
    orgs: tuple[OrgInfo, ...]
    keys: tuple[KeyInfo, ...]
    routes: tuple[Route, ...]
    members: tuple[MemberInfo, ...] = ()
    budgets: tuple[Budget, ...] = ()


class SignedSnapshot(msgspec.Struct, frozen=True):
    """`payload` is a packed Snapshot, `signature` Ed25519 over it. Gateways hold the public key only."""

    payload: bytes
    signature: bytes
