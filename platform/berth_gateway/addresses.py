"""Where a request comes from, and whether a key may be used from there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_LONGEST = 64  # characters of an address with a port


@lru_cache(maxsize=4096)
def networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """Networks in CIDR form. One that cannot be read admits nobody: it is left out, and the others stand."""
    found = []
    for text in texts:
        try:
            found.append(ip_network(text, strict=False))
        except ValueError:
            continue
    return tuple(found)


def read_address(text: str) -> Address | None:
    """An address, also with a port behind it or a zone. An IPv4 address within IPv6 is the IPv4 address."""
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def within(address: Address, among: Sequence[Network]) -> bool:
    return any(address in network for network in among)


def client_address(peer: str | None, forwarded: Sequence[bytes], proxies: Sequence[Network]) -> Address | None:
    """The peer's; where that is a trusted proxy, what it says: the last address in X-Forwarded-For that is no such proxy.

    What stands further left was written by whoever sent the request, and counts for nothing. None: not known.
    """
    address = None if peer is None else read_address(peer)
    if address is None or not proxies or not within(address, proxies):
        return address
    for hop in reversed(b",".join(forwarded).decode("latin-1").split(",") if forwarded else []):
        address = read_address(hop)
        if address is None or not within(address, proxies):
            break
    return address


def admits(allowed: tuple[str, ...], address: Address | None) -> bool:
    """Whether a key with these networks may be used from there. Without networks: from anywhere."""
    return not allowed or (address is not None and within(address, networks(allowed)))
