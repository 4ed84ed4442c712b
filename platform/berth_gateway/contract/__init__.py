"""What crosses the border between the control plane and a gateway.

The control plane imports this package and nothing else of the gateway; its parts have a file each. Every type is frozen and
travels as MessagePack; a reader ignores fields it does not know, so fields may be added with a default. A change that an older reader would
misunderstand raises the format number, and both sides refuse formats they do not know.
"""

from __future__ import annotations

from berth_gateway.contract.limits import PRICE_CEILING, Budget, BudgetScope, Limits, MemberInfo, Period, Price
from berth_gateway.contract.records import (
    BOX_INFO,
    BOX_VERSION,
    MOST_RECORDS,
    RECORD_FORMAT,
    RecordContent,
    Recording,
    SealedRecord,
    box_context,
    record_mac,
)
from berth_gateway.contract.reports import DeploymentLoad, GatewayReport, Wake
from berth_gateway.contract.routes import Replica, RevisionWeight, Route, RouteState, Shadow
from berth_gateway.contract.secret import KEY_BODY_LENGTH, KEY_LENGTH, KEY_PREFIX, base62, key_checksum, key_well_formed
from berth_gateway.contract.snapshot import SNAPSHOT_FORMAT, KeyInfo, OrgInfo, SignedSnapshot, Snapshot
from berth_gateway.contract.usage import (
    USAGE_FORMAT,
    WORKER_MARK,
    CountedBy,
    Outcome,
    UsageBatch,
    UsageEvent,
    usage_key,
    usage_mac,
    worker_key,
    worker_name,
)
from berth_gateway.contract.valkey import (
    BUDGET_PREFIX,
    GATEWAYS_KEY,
    LIMIT_PREFIX,
    LOAD_PREFIX,
    RECORD_STREAM,
    SLOTS_CHANNEL,
    SLOTS_PREFIX,
    SNAPSHOT_CHANNEL,
    SNAPSHOT_KEY,
    USAGE_POSITION_KEY,
    USAGE_STREAM,
    WAKE_PREFIX,
    WAKE_STREAM,
)

__all__ = [
    "BOX_INFO",
    "BOX_VERSION",
    "BUDGET_PREFIX",
    "GATEWAYS_KEY",
    "KEY_BODY_LENGTH",
    "KEY_LENGTH",
    "KEY_PREFIX",
    "LIMIT_PREFIX",
    "LOAD_PREFIX",
    "MOST_RECORDS",
    "PRICE_CEILING",
    "RECORD_FORMAT",
    "RECORD_STREAM",
    "SLOTS_CHANNEL",
    "SLOTS_PREFIX",
    "SNAPSHOT_CHANNEL",
    "SNAPSHOT_FORMAT",
    "SNAPSHOT_KEY",
    "USAGE_FORMAT",
    "USAGE_POSITION_KEY",
    "USAGE_STREAM",
    "WAKE_PREFIX",
    "WAKE_STREAM",
    "WORKER_MARK",
    "Budget",
    "BudgetScope",
    "CountedBy",
    "DeploymentLoad",
    "GatewayReport",
    "KeyInfo",
    "Limits",
    "MemberInfo",
    "OrgInfo",
    "Outcome",
    "Period",
    "Price",
    "RecordContent",
    "Recording",
    "Replica",
    "RevisionWeight",
    "Route",
    "RouteState",
    "SealedRecord",
    "Shadow",
    "SignedSnapshot",
    "Snapshot",
    "UsageBatch",
    "UsageEvent",
    "Wake",
    "base62",
    "box_context",
    "key_checksum",
    "key_well_formed",
    "record_mac",
    "usage_key",
    "usage_mac",
    "worker_key",
    "worker_name",
]
