"""What this gateway knows: the last good snapshot, in memory and on disk.

A snapshot is applied only if its signature is the control plane's and it is newer than what is applied, so neither a late
message nor somebody who can write to Valkey can bring a revoked key back.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from msgspec import Raw, Struct

from berth_gateway.contract import (
    SNAPSHOT_FORMAT,
    Budget,
    MemberInfo,
    OrgInfo,
    Route,
    Snapshot,
)
from berth_gateway.keytable import KeyTable


class _Signed(Struct):
    """A SignedSnapshot that is not copied."""

    payload: memoryview
    signature: bytes


class PackedSnapshot(Snapshot, frozen=True):
    """A Snapshot whose keys stay packed."""

    keys: tuple[Raw, ...]  # type: ignore[assignment]


_signed = msgspec.msgpack.Decoder(_Signed)
_snapshot = msgspec.msgpack.Decoder(PackedSnapshot)
_format = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])

CLOCK_SLACK = 60.0  # seconds that a file may seem to come from the future


class Verdict(StrEnum):
    """What became of an offered snapshot."""

    APPLIED = "applied"
    CURRENT = "current"  # the very one that is applied
    OLDER = "older"
    BAD_SIGNATURE = "bad_signature"
    UNREADABLE = "unreadable"
    UNKNOWN_FORMAT = "unknown_format"


@dataclass(frozen=True)
class View:
    """A snapshot arranged for look-up."""

    epoch: str
    version: int
    issued_at: int
    keys: KeyTable = field(repr=False)
    orgs: dict[str, OrgInfo] = field(repr=False)
    routes: dict[str, Route] = field(repr=False)
    origins: frozenset[str] = field(repr=False)
    members: dict[str, MemberInfo] = field(default_factory=dict, repr=False)
    budgets: tuple[Budget, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, snapshot: Snapshot) -> View:
        """Raises DecodeError for packed keys that are none."""
        return cls(
            epoch=snapshot.epoch,
            version=snapshot.version,
            issued_at=snapshot.issued_at,
            keys=KeyTable.unpacked(snapshot.keys)
            if isinstance(snapshot, PackedSnapshot)
            else KeyTable.of(snapshot.keys),
            orgs={o.org_id: o for o in snapshot.orgs},
            routes={r.name: r for r in snapshot.routes},
            origins=frozenset(origin for o in snapshot.orgs for origin in o.origins),
            members={m.member_id: m for m in snapshot.members},
            budgets=snapshot.budgets,
        )


def load_public_key(data: bytes) -> Ed25519PublicKey:
    """From PEM, 32 raw bytes, or those in hexadecimal. Raises ValueError."""
    if data.lstrip().startswith(b"-----"):
        key = load_pem_public_key(data)
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("it is not an Ed25519 key")
        return key
    if len(data) != 32:
        data = bytes.fromhex(data.strip().decode("ascii"))
    return Ed25519PublicKey.from_public_bytes(data)


class Store(Protocol):
    """Where a gateway has its view from."""

    view: View | None
    confirmed_at: float

    def usable(self, now: float) -> View | None:
        """The view, if it may be used."""

    def offer(self, packed: bytes, now: float) -> Verdict:
        """Judges a packed SignedSnapshot."""

    def confirm(self, now: float) -> None:
        """The view was found to be the newest."""

    def load(self, now: float) -> Verdict | None:
        """At the start of the process."""


class SnapshotStore:
    """Holds the applied snapshot and its copy on disk. `confirmed_at`: when Valkey last said that it is the newest (Unix s)."""

    def __init__(self, public_key: Ed25519PublicKey, path: Path, max_age: float) -> None:
        self._public_key = public_key
        self._path = path
        self._max_age = max_age
        self._touched_at = 0.0
        self.view: View | None = None
        self.confirmed_at = 0.0
        self.refused: dict[str, int] = {}

    def usable(self, now: float) -> View | None:
        """The view, unless there is none or nobody has confirmed it for too long."""
        if self.view is None or now - self.confirmed_at > self._max_age:
            return None
        return self.view

    def offer(self, packed: bytes, now: float) -> Verdict:
        """Judges a packed SignedSnapshot and applies it if it is good and newer."""
        snapshot, verdict = self._judge(packed)
        if snapshot is not None:
            try:
                self.view = View.of(snapshot)
                self._save(packed)
            except (msgspec.DecodeError, RecursionError):
                verdict = Verdict.UNREADABLE
        if verdict in (Verdict.APPLIED, Verdict.CURRENT):
            self.confirm(now)
        else:
            self.refused[verdict] = self.refused.get(verdict, 0) + 1
        return verdict

    def _judge(self, packed: bytes) -> tuple[Snapshot | None, Verdict]:
        try:
            signed = _signed.decode(packed)
            self._public_key.verify(signed.signature, signed.payload)
        except InvalidSignature:
            return None, Verdict.BAD_SIGNATURE
        except (msgspec.DecodeError, RecursionError):
            return None, Verdict.UNREADABLE
        try:
            if msgspec.msgpack.decode(_format.decode(signed.payload)["format"]) != SNAPSHOT_FORMAT:
                return None, Verdict.UNKNOWN_FORMAT
            snapshot = _snapshot.decode(signed.payload)
        except (msgspec.DecodeError, KeyError):
            return None, Verdict.UNREADABLE
        view = self.view
        if view is None:
            return snapshot, Verdict.APPLIED
        if snapshot.epoch == view.epoch:
            if snapshot.version == view.version:
                return None, Verdict.CURRENT
            return (snapshot, Verdict.APPLIED) if snapshot.version > view.version else (None, Verdict.OLDER)
        return (snapshot, Verdict.APPLIED) if snapshot.issued_at > view.issued_at else (None, Verdict.OLDER)

    def confirm(self, now: float) -> None:
        """Valkey names the applied version as its newest. Kept on disk as the file's time, once a minute."""
        self.confirmed_at = now
        if now - self._touched_at >= 60:
            self._touched_at = now
            try:
                os.utime(self._path, (now, now))
            except OSError:
                return  # the copy is a help for restarts; without it the gateway still serves

    def load(self, now: float) -> Verdict | None:
        """Takes the copy on disk, with the age it had. None: there is none."""
        try:
            packed = self._path.read_bytes()
            confirmed = self._path.stat().st_mtime
        except OSError:
            return None
        verdict = self.offer(packed, now)
        if verdict is Verdict.APPLIED and self.view is not None:
            self.confirmed_at = confirmed if confirmed <= now + CLOCK_SLACK else float(self.view.issued_at)
            self._stamp(self.confirmed_at)
        return verdict

    def _save(self, packed: bytes) -> None:
        fresh = self._path.with_suffix(".new")
        try:
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(packed)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError:
            self.refused["disk"] = self.refused.get("disk", 0) + 1

    def _stamp(self, at: float) -> None:
        try:
            os.utime(self._path, (at, at))
        except OSError:
            return


def _main(arguments: list[str]) -> int:
    from berth_gateway.snapshot_file import example

    if arguments != ["example"]:
        sys.stderr.write("usage: python -m berth_gateway.snapshot example > snapshot.json\n")
        return 2
    text, token = example()
    sys.stdout.write(text.decode())
    sys.stderr.write(f"The API key that this file admits, shown this once: {token}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
