"""Names in Valkey. The gateway may read the snapshot and write the rest; see docs/architecture.md."""

from __future__ import annotations

SNAPSHOT_KEY = "berth:snapshot"  # hash: epoch, version, signed (a packed SignedSnapshot)
SNAPSHOT_CHANNEL = "berth:snapshot:version"  # publishes the version number when it rises
GATEWAYS_KEY = "berth:gateways"  # hash: gateway name -> packed GatewayReport, written every second
USAGE_STREAM = "berth:usage"  # stream: field b"batch" = packed UsageBatch
USAGE_POSITION_KEY = "berth:usage:position"  # hash: gateway name -> spool position that is safely in PostgreSQL
RECORD_STREAM = "berth:records"  # stream: field b"record" = packed SealedRecord
BUDGET_PREFIX = "berth:budget:"  # + budget id + ":" + period: hash, see docs/limits.md
WAKE_STREAM = "berth:wake"  # stream: field b"wake" = packed Wake, read by the control plane
WAKE_PREFIX = "berth:wake:"  # + deployment id + ":" + sleep: held for a while by the gateway that asked
LOAD_PREFIX = "berth:load:"  # + gateway name: hash, deployment id -> packed DeploymentLoad, written every second
LIMIT_PREFIX = "berth:limit:"  # + kind + ":" + subject: what workers share of a rate limit or of concurrency
SLOTS_PREFIX = (
    "berth:slots:"  # + a replica's name for this (`slots.Lease`): hash, what gateways hold and want of its slots
)
SLOTS_CHANNEL = "berth:slots"  # "<name> <gateway>": somebody is short of a replica's slots, or has given some back
