"""Plants phrases that occur nowhere else and looks for them in everything that the platform keeps.

A scanner that finds nothing proves nothing, so every sink also says how many bytes were searched, and the control test plants a
phrase on purpose and expects each sink to show it.
"""

from __future__ import annotations

import base64
import gzip
import secrets
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import redis
from psycopg import sql

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


def fresh_core() -> str:
    """26 random base32 characters (130 bits): what every phrase of one run has in common, so that one search finds them all."""
    return "".join(secrets.choice(ALPHABET) for _ in range(26))


def phrase(core: str, place: str) -> str:
    """What is planted, with the place it was planted in."""
    return f"BC-{core}-{place}"


def variants(text: str) -> dict[str, bytes]:
    """How a phrase's core may look in a sink: whole, in halves, and in the usual encodings."""
    core = text.encode()
    found = {
        "plain": core,
        "first half": core[:12],
        "second half": core[-12:],
        "hex": core.hex().encode(),
        "HEX": core.hex().upper().encode(),
        "utf-16": core.decode().encode("utf-16-le"),
        "reversed": core[::-1],
    }
    for offset in range(3):
        # Two bytes at either end depend on their neighbours, so only the middle of the encoded text is certain.
        encoded = base64.b64encode(b"\0" * offset + core)
        found[f"base64+{offset}"] = encoded[4:-4]
        found[f"urlsafe base64+{offset}"] = base64.urlsafe_b64encode(b"\0" * offset + core)[4:-4]
    return found


@dataclass
class Sink:
    """One place that was searched."""

    name: str
    size: int = 0  # bytes searched
    hits: list[str] = field(default_factory=list)


class Scanner:
    def __init__(self, core: str) -> None:
        self.needles = variants(core)

    def search(self, sink: Sink, data: bytes, where: str) -> None:
        sink.size += len(data)
        for content, note in ((data, ""), *((unpacked, " unpacked") for unpacked in _unpacked(data))):
            sink.hits += [f"{name} in {where}{note}" for name, needle in self.needles.items() if needle in content]

    def files(self, root: Path, skip: tuple[Path, ...] = ()) -> Sink:
        """Every file below `root`. Weights are skipped by the caller: they were there before any prompt."""
        sink = Sink(f"files under {root.name}")
        for path in sorted(root.rglob("*")):
            if path.is_file() and not path.is_symlink() and not any(path.is_relative_to(other) for other in skip):
                try:
                    self.search(sink, path.read_bytes(), str(path.relative_to(root)))
                except FileNotFoundError:
                    continue  # it was rotated away in between
        return sink

    def postgres(self, url: str) -> Sink:
        """Every table of every schema that users can write, as text."""
        sink = Sink("PostgreSQL tables")
        with psycopg.connect(url) as connection:
            tables = connection.execute(
                "select schemaname, tablename from pg_tables where schemaname not in ('pg_catalog', 'information_schema')"
            ).fetchall()
            for schema, table in tables:
                query = sql.SQL("copy {} to stdout").format(sql.Identifier(schema, table))
                with connection.cursor().copy(query) as copy:
                    self.search(sink, b"".join(bytes(block) for block in copy), table)
            connection.execute("checkpoint")  # what is still in memory reaches the files, which are searched too
        return sink

    def valkey(self, url: str) -> Sink:
        """Every key with its value, whatever its type, and the slow log."""
        sink = Sink("Valkey keys")
        with redis.Redis.from_url(url) as client:
            for key in client.scan_iter(count=500):
                self.search(sink, bytes(key), "a key's name")
                self.search(sink, client.dump(key) or b"", f"key {key.decode(errors='replace')[:60]}")
                for piece in _values(client, key):
                    self.search(sink, piece, f"value of {key.decode(errors='replace')[:60]}")
            for entry in client.slowlog_get(128):
                self.search(sink, repr(entry).encode(), "slow log")
        return sink


def _unpacked(data: bytes) -> Iterator[bytes]:
    if data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)
    elif data[:2] in {b"\x78\x9c", b"\x78\xda", b"\x78\x01"}:
        try:
            yield zlib.decompress(data)
        except zlib.error:
            return


def _values(client: redis.Redis, key: bytes) -> Iterator[bytes]:
    match client.type(key):
        case b"string":
            yield client.get(key) or b""
        case b"hash":
            for name, value in client.hgetall(key).items():
                yield name
                yield value
        case b"list":
            yield from client.lrange(key, 0, -1)
        case b"set":
            yield from client.smembers(key)
        case b"zset":
            yield from (member for member, _ in client.zrange(key, 0, -1, withscores=True))
        case b"stream":
            for _, fields in client.xrange(key):
                yield from fields.values()
