"""What crosses the border between the control plane and a gateway.

The control plane imports this module and nothing else of the gateway. Every type is frozen and travels as MessagePack;
a reader ignores fields it does not know, so fields may be added with a default. A change that an older reader would
misunderstand raises the format number, and both sides refuse formats they do not know.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from enum import StrEnum

import msgspec

SNAPSHOT_FORMAT = 1
USAGE_FORMAT = 1

# Names in Valkey. The gateway may read the snapshot and write the rest; see docs/architecture.md.
SNAPSHOT_KEY = "berth:snapshot"  # hash: epoch, version, signed (a packed SignedSnapshot)
SNAPSHOT_CHANNEL = "berth:snapshot:version"  # publishes the version number when it rises
GATEWAYS_KEY = "berth:gateways"  # hash: gateway name -> packed GatewayReport, written every second
USAGE_STREAM = "berth:usage"  # stream: field b"batch" = packed UsageBatch
USAGE_POSITION_KEY = "berth:usage:position"  # hash: gateway name -> spool position that is safely in PostgreSQL
BUDGET_PREFIX = "berth:budget:"  # + budget id + ":" + period: hash, see docs/limits.md
WAKE_STREAM = "berth:wake"  # stream: field b"wake" = packed Wake, read by the control plane
WAKE_PREFIX = "berth:wake:"  # + deployment id + ":" + sleep: held for a while by the gateway that asked
LOAD_PREFIX = "berth:load:"  # + gateway name: hash, deployment id -> packed DeploymentLoad, written every second
LIMIT_PREFIX = "berth:limit:"  # + kind + ":" + subject: what workers share of a rate limit or of concurrency


class RouteState(StrEnum):
    """What a request for this deployment meets."""

    READY = "ready"  # at least one replica answers
    LOADING = "loading"  # replicas are being started: the request is held, then 503 model_loading
    ASLEEP = "asleep"  # no replica, because nobody asked for one: the request wakes it and is held
    PAUSED = "paused"  # stopped by its owner: 403 deployment_paused
    UNAVAILABLE = "unavailable"  # should run, but nothing answers and nothing is starting: 503 overloaded


class Limits(msgspec.Struct, frozen=True):
    """How fast something may be used: requests and tokens in any minute, requests at one moment. None: no limit."""

    rpm: int | None = None
    tpm: int | None = None
    concurrency: int | None = None


class Price(msgspec.Struct, frozen=True):
    """Price of one token, in 10^-12 of the currency's main unit, from `valid_from` (Unix seconds) on."""

    valid_from: float
    input: int
    cached: int
    output: int


PRICE_CEILING = 10**18  # a million of the currency for one token: beyond any price, and far below 2^63


class BudgetScope(StrEnum):
    """What a budget is about; usage of the organisation's requests with that id counts."""

    ORG = "org"
    DEPLOYMENT = "deployment"
    KEY = "key"
    MEMBER = "member"


class Period(msgspec.Struct, frozen=True):
    """A stretch of time that a budget is for: requests accepted from `starts_at` to before `ends_at` (Unix seconds)."""

    name: str  # "2026-11", "2026-11-30", "total"
    starts_at: float
    ends_at: float


class Budget(msgspec.Struct, frozen=True):
    """A hard limit on what may be spent in each period. `limit_pico` in 10^-12 of the currency's main unit, below 2^63."""

    budget_id: str
    org_id: str
    scope: BudgetScope
    subject_id: str  # of the organisation, deployment, key or member
    limit_pico: int
    version: int  # rises with each change
    periods: tuple[Period, ...]  # the current one and those that follow while this snapshot may be in use


class MemberInfo(msgspec.Struct, frozen=True):
    """A member whose keys together are limited. Members without limits are not in a snapshot."""

    member_id: str
    org_id: str
    limits: Limits


class Replica(msgspec.Struct, frozen=True):
    """One running engine. `secret` is the bearer token that this engine alone accepts."""

    name: str
    host: str
    port: int
    secret: str
    slots: int | None = None  # requests that it works on side by side; None: not known, so nothing waits at the gateway
    revision: int | None = None  # None: the route's


class RevisionWeight(msgspec.Struct, frozen=True):
    """A revision's share of a route's requests: `weight` of the sum of all weights. Revisions without one get none while others
    can answer."""

    revision: int
    weight: int


class Shadow(msgspec.Struct, frozen=True):
    """Replicas that get copies of `percent` of the requests. Their answers are dropped and nothing of them is metered."""

    replicas: tuple[Replica, ...]
    percent: int


class Route(msgspec.Struct, frozen=True):
    """A deployment as the gateway sees it, called `name` (`org/deployment`) by clients."""

    name: str
    org_id: str
    deployment_id: str
    revision: int
    state: RouteState
    engine: str
    engine_model: str  # what the engine calls the model; written into the body that goes upstream
    # Of "chat/completions", "completions", "responses", "messages" (with its count_tokens), "embeddings", "rerank",
    # "audio/transcriptions", "audio/translations".
    endpoints: tuple[str, ...]
    context_length: int  # tokens, prompt and completion together, for one request
    created: int  # Unix seconds
    replicas: tuple[Replica, ...] = ()
    ready_in_seconds: int | None = None  # usual time left, when loading
    extra_fields: tuple[str, ...] = ()  # body fields that the deployment's owner admits beyond the built-in table
    limits: Limits | None = None
    weights: tuple[RevisionWeight, ...] = ()  # empty: the revisions that serve share alike
    shadow: Shadow | None = None
    asleep_since: int | None = None  # Unix milliseconds; tells one sleep from the next
    hold_seconds: int = 300  # how long a request waits for a deployment that is asleep or starting
    prices: tuple[Price, ...] = ()  # the valid one and those announced after it, in order; without any, nothing is paid


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


class OrgInfo(msgspec.Struct, frozen=True):
    org_id: str
    slug: str
    suspended: bool = False
    origins: tuple[str, ...] = ()  # browser origins that may call with CORS
    limits: Limits | None = None
    weight: int = 1  # its share where organisations wait for the same replicas


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


class GatewayReport(msgspec.Struct, frozen=True):
    """A gateway's sign of life. "Applied" means that requests are judged by this version from now on."""

    gateway: str
    epoch: str
    version: int
    at: float  # Unix seconds
    started_at: float
    in_flight: int
    spool_pending: int  # usage events not yet known to be in PostgreSQL


class Wake(msgspec.Struct, frozen=True):
    """A request waits for a deployment that is asleep. `sleep` is the route's `asleep_since`: a message that comes late wakes nobody."""

    deployment_id: str
    sleep: int
    at: float  # Unix seconds


class DeploymentLoad(msgspec.Struct, frozen=True):
    """What one gateway sees of a deployment. Counts and sums only rise and begin at `since`, when the gateway started."""

    at: float  # Unix seconds
    since: float
    active_at: float  # when a request last arrived, waited or ran
    arrivals: int
    in_flight: int  # sent to replicas; now
    queued: int  # waiting for a replica; now
    answers: int  # with a first token
    first_token_seconds: float  # sum over `answers`, from arrival
    queue_seconds: float  # sum over requests that were sent to a replica
    decode_seconds: float  # sum of the time from first to last token
    decode_tokens: int  # tokens behind the first in that time
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Outcome(StrEnum):
    """How an accepted request ended."""

    OK = "ok"
    CLIENT_CLOSED = "client_closed"
    UPSTREAM_ERROR = "upstream_error"  # the replica refused, broke off or was unreachable
    REJECTED = "rejected"  # the replica found the request wrong (400): never billed
    TIMEOUT = "timeout"
    # The gateway ended it: it was killed (settled from its spool at the next start), stopped, or the key was revoked meanwhile.
    INTERRUPTED = "interrupted"


class CountedBy(StrEnum):
    """Where the token counts come from, most exact first."""

    ENGINE = "engine"  # the engine's final usage
    ENGINE_RUNNING = "engine_running"  # the engine's last running figure before the request broke off
    ESTIMATE = "estimate"  # chunks relayed, never above what the request could have produced
    NONE = "none"  # nothing was produced


class UsageEvent(msgspec.Struct, frozen=True, gc=False):
    """One accepted request. It has no field that could carry text of a prompt or completion, and never gets one.

    `cached_tokens` is a part of `prompt_tokens`, `reasoning_tokens` a part of `completion_tokens`.
    """

    format: int
    event_id: str  # UUIDv7, made at admission
    gateway: str
    org_id: str
    key_id: str
    deployment_id: str
    revision: int
    endpoint: str
    stream: bool
    accepted_at: float  # Unix seconds
    duration_ms: float
    outcome: Outcome
    status: int  # HTTP status sent to the client; 499 when it left first
    counted_by: CountedBy
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    first_token_ms: float | None = None


class UsageBatch(msgspec.Struct, frozen=True):
    """Usage events of one gateway between two positions of its spool.

    Positions only rise. The ingester acknowledges a batch by moving the gateway's position to `end`, and does so only if
    `start` is at or before the position it holds: a gap is left for the gateway to send again. `mac` is over `payload`
    with the gateway's own key, so that a batch cannot be altered or attributed to another gateway.
    """

    format: int
    gateway: str
    start: int
    end: int
    payload: bytes  # packed list[UsageEvent]
    mac: bytes


WORKER_MARK = ":"  # between a gateway's name, which cannot hold it, and the number of one of its workers


def worker_name(gateway: str, number: int) -> str:
    """What one of several processes of a gateway is called in reports and usage batches."""
    return f"{gateway}{WORKER_MARK}{number}"


def usage_key(master: bytes, gateway: str) -> bytes:
    """The gateway's or worker's own MAC key. The control plane holds `master`; a gateway is only ever given its own."""
    name, mark, number = gateway.partition(WORKER_MARK)
    key = hmac.new(master, b"berth usage v1:" + name.encode(), hashlib.sha256).digest()
    return worker_key(key, number) if mark else key


def worker_key(key: bytes, number: int | str) -> bytes:
    """The MAC key of a gateway's worker, from the gateway's own: what `usage_key` gives for its `worker_name`."""
    return hmac.new(key, b"berth worker v1:" + str(number).encode(), hashlib.sha256).digest()


def usage_mac(key: bytes, gateway: str, start: int, end: int, payload: bytes) -> bytes:
    """HMAC-SHA256 over everything in a batch that means something."""
    head = f"{gateway}\x00{start}\x00{end}\x00".encode()
    return hmac.new(key, head + payload, hashlib.sha256).digest()


KEY_PREFIX = "bth_sk_"
KEY_BODY_LENGTH = 43  # base62 characters: 256 random bits
KEY_LENGTH = len(KEY_PREFIX) + KEY_BODY_LENGTH + 6
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def base62(number: int, length: int) -> str:
    """`number` in base 62, most significant first, padded with zeros to `length`. OverflowError when it does not fit."""
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    if number:
        raise OverflowError("does not fit")
    return "".join(reversed(digits))


def key_checksum(body: str) -> str:
    """The last six characters of an API key: CRC-32 of prefix and body, so that a typo is found without a look-up."""
    return base62(zlib.crc32((KEY_PREFIX + body).encode("ascii")), 6)


def key_well_formed(secret: str) -> bool:
    """Whether this can be an API key at all. Says nothing about whether it exists."""
    if len(secret) != KEY_LENGTH or not secret.startswith(KEY_PREFIX) or not secret.isascii():
        return False
    body, checksum = secret[len(KEY_PREFIX) : -6], secret[-6:]
    return body.isalnum() and key_checksum(body) == checksum
