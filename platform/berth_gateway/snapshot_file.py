"""A snapshot written by hand, for a gateway that runs alone: one JSON file, unsigned, read anew when it changes.

Whoever can write to the file decides who may call, so it belongs to the gateway's user alone. Keys stand in it by their
SHA-256, never as they are. docs/gateway.md shows the form; `python -m berth_gateway.snapshot example` prints one.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from berth_gateway import addresses
from berth_gateway.contract import (
    KEY_BODY_LENGTH,
    KEY_PREFIX,
    SNAPSHOT_FORMAT,
    Budget,
    KeyInfo,
    Limits,
    OrgInfo,
    Price,
    Replica,
    Route,
    RouteState,
    Snapshot,
    base62,
    key_checksum,
)
from berth_gateway.keytable import KeyTable
from berth_gateway.snapshot import Verdict, View


class SnapshotFileError(Exception):
    """The file cannot be used; the text is a sentence for people."""


class _FileLimits(Limits, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    pass


class _Strict(Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    pass


class _Organization(_Strict, frozen=True):
    id: str
    origins: tuple[str, ...] = ()
    limits: _FileLimits | None = None


class _Key(_Strict, frozen=True):
    id: str
    organization: str
    sha256: str
    models: tuple[str, ...] | None = None  # None: every model of the organisation
    expires_at: int | None = None  # Unix seconds
    limits: _FileLimits | None = None
    networks: tuple[str, ...] = ()  # CIDR: where it may be used from; empty: anywhere


class _Replica(_Strict, frozen=True):
    port: int
    host: str = "127.0.0.1"
    secret: str = ""
    slots: int | None = None


class _Model(_Strict, frozen=True):
    name: str
    organization: str
    engine: str
    engine_model: str
    context_length: int
    replicas: tuple[_Replica, ...]
    endpoints: tuple[str, ...] = ("chat/completions", "completions")
    extra_fields: tuple[str, ...] = ()
    limits: _FileLimits | None = None
    prices: tuple[Price, ...] = ()


class SnapshotFile(_Strict, frozen=True):
    """What the file holds. Keys are many, so they are read one by one."""

    organizations: tuple[_Organization, ...]
    keys: tuple[Raw, ...]
    models: tuple[_Model, ...]
    budgets: tuple[Budget, ...] = ()


_decode = msgspec.json.Decoder(SnapshotFile).decode
_decode_key = msgspec.json.Decoder(_Key).decode


def parse(data: bytes, *, version: int, issued_at: int) -> View:
    """What a file's bytes say. Raises SnapshotFileError with a sentence."""
    try:
        file = _decode(data)
        keys = KeyTable((_key(_decode_key(raw), file) for raw in file.keys), len(file.keys))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise SnapshotFileError(f"The snapshot file cannot be used: {fault}.") from None
    for model in file.models:
        _check_known(model.organization, file)
    rest = Snapshot(
        format=SNAPSHOT_FORMAT,
        epoch="file",
        version=version,
        issued_at=issued_at,
        orgs=tuple(OrgInfo(o.id, o.id, origins=o.origins, limits=o.limits) for o in file.organizations),
        keys=(),
        routes=tuple(_route(m, issued_at) for m in file.models),
        budgets=file.budgets,
    )
    return replace(View.of(rest), keys=keys)


def _check_known(organization: str, file: SnapshotFile) -> None:
    if not any(each.id == organization for each in file.organizations):
        raise SnapshotFileError(f"The snapshot file has no organization '{organization}', but something belongs to it.")


def _key(key: _Key, file: SnapshotFile) -> KeyInfo:
    _check_known(key.organization, file)
    try:
        digest = bytes.fromhex(key.sha256)
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise SnapshotFileError(f"The key '{key.id}' needs a SHA-256 of 64 hexadecimal digits.")
    return KeyInfo(
        digest=digest,
        key_id=key.id,
        org_id=key.organization,
        deployment_ids=key.models,
        expires_at=key.expires_at,
        limits=key.limits,
        networks=_networks(key),
    )


def _networks(key: _Key) -> tuple[str, ...]:
    if len(addresses.networks(key.networks)) != len(key.networks):
        raise SnapshotFileError(f"The key '{key.id}' has a network that cannot be read; write it as 203.0.113.0/24.")
    return key.networks


def _route(model: _Model, created: int) -> Route:
    return Route(
        name=model.name,
        org_id=model.organization,
        deployment_id=model.name,
        revision=1,
        state=RouteState.READY,
        engine=model.engine,
        engine_model=model.engine_model,
        endpoints=model.endpoints,
        context_length=model.context_length,
        created=created,
        replicas=tuple(Replica(f"{r.host}:{r.port}", r.host, r.port, r.secret, r.slots) for r in model.replicas),
        extra_fields=model.extra_fields,
        limits=model.limits,
        prices=model.prices,
    )


class FileStore:
    """Holds what the file says. The same to the gateway as a SnapshotStore, but never too old: nobody else could confirm it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.view: View | None = None
        self.confirmed_at = 0.0
        self._seen: tuple[int, int, int] | None = None
        self._version = 0

    def usable(self, now: float) -> View | None:
        return self.view

    def offer(self, packed: bytes, now: float) -> Verdict:
        """Nobody's word counts but the file's."""
        return Verdict.BAD_SIGNATURE

    def confirm(self, now: float) -> None:
        self.confirmed_at = now

    def load(self, now: float) -> Verdict | None:
        """Raises SnapshotFileError."""
        return Verdict.APPLIED if self.refresh(now) else None

    def refresh(self, now: float) -> bool:
        """Reads the file if it has changed; True if it is applied. Raises SnapshotFileError, once for each bad content."""
        try:
            stat = self.path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                self.confirmed_at = now
                return False
            data = self.path.read_bytes()
        except OSError as fault:
            if self._seen is None and self.view is not None:
                return False
            self._seen = None
            raise SnapshotFileError(f"{self.path} cannot be read: {fault.strerror}.") from None
        self._seen = seen
        self.view = parse(data, version=self._version + 1, issued_at=int(stat.st_mtime))
        self._version += 1
        self.confirmed_at = now
        return True


def example() -> tuple[bytes, str]:
    """A file to start from, and the API key that it admits."""
    body = base62(secrets.randbelow(62**KEY_BODY_LENGTH), KEY_BODY_LENGTH)
    token = KEY_PREFIX + body + key_checksum(body)
    digest = hashlib.sha256(token.encode()).hexdigest()
    file = SnapshotFile(
        organizations=(_Organization("acme"),),
        keys=(Raw(msgspec.json.encode(_Key("key-1", "acme", digest, limits=_FileLimits(rpm=600)))),),
        models=(
            _Model(
                name="acme/assistant",
                organization="acme",
                engine="llamacpp",
                engine_model="assistant",
                context_length=4096,
                replicas=(_Replica(8081),),
            ),
        ),
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n", token
