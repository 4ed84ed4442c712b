"""Which replica is likely to have a prompt's beginning in its cache: rendezvous hashing with bounded load. Pure.

The hash is over the beginning of the prompt and salted per organisation, so that equal prompts of two organisations have
nothing in common. The salt comes from the snapshot's epoch: all gateways choose alike. Neither it nor a hash is ever kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

import msgspec

LEAD_BYTES = 64 * 1024  # of a prompt's beginning that are looked at
SPARE = 1.25  # a replica may have so much of the average number in flight before the next one is preferred

T = TypeVar("T")


class _Prompt(msgspec.Struct):
    """What begins a prompt, in the order in which engines read it."""

    system: msgspec.Raw = msgspec.Raw(b"")
    messages: list[msgspec.Raw] = []
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")


_prompt = msgspec.json.Decoder(_Prompt)
_USER = b'"role":"user"'  # as the gateway writes it; within a text the quotes would be escaped


def lead_of(body: bytes) -> bytes:
    """The part of a request that later requests of the same conversation begin with, too: everything up to and with the first
    message of the user. Empty when there is none."""
    try:
        prompt = _prompt.decode(body)
    except msgspec.DecodeError:
        return b""
    parts = [bytes(prompt.system)]
    for message in prompt.messages:
        raw = bytes(message)
        parts.append(raw)
        if _USER in raw:
            break
    parts += [bytes(prompt.prompt), bytes(prompt.input)]
    return b"".join(parts)[:LEAD_BYTES]


def key_of(epoch: str, org_id: str, body: bytes) -> bytes:
    """Sixteen bytes that stand for the beginning of this organisation's prompt."""
    salt = blake2b(org_id.encode(), key=epoch.encode()[:64], digest_size=32).digest()
    return blake2b(lead_of(body), key=salt, digest_size=16).digest()


def bound(total: int, count: int) -> int:
    """How many requests one of `count` replicas may have at most after one more than `total` was given out."""
    return -int(-SPARE * (total + 1) // count)


def prefer(key: bytes, some: Sequence[T], name: Callable[[T], str], load: Callable[[T], int], limit: int) -> T | None:
    """Of those with fewer than `limit` in flight the one that this key prefers. None: all have as many.

    Who is preferred depends on key and name alone: a replica that comes or goes moves only the keys that prefer it.
    """
    free = [each for each in some if load(each) < limit]
    if not free:
        return None
    return max(free, key=lambda each: blake2b(name(each).encode(), key=key, digest_size=8).digest())
