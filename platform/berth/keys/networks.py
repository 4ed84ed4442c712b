"""Networks that a key may be used from: as people write them, to the one form that is kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_network

from berth.web.errors import ApiError

MOST = 50
LONGEST = 43  # characters of an IPv6 network


def normal_networks(texts: Iterable[str]) -> list[str]:
    """In CIDR form, each once, in order; an address alone is a network of one. ApiError 400 for what is none."""
    found: dict[str, None] = {}
    for text in texts:
        try:
            network = ip_network(text.strip())
        except ValueError:
            raise ApiError(
                "key.network_invalid",
                "Write a network as 203.0.113.0/24 or 2001:db8::/32, or one address. The bits behind the prefix must be zero.",
                field="networks",
            ) from None
        if network.prefixlen == 0:
            raise ApiError(
                "key.network_all",
                "That is every address. Leave the list empty for a key that works anywhere.",
                field="networks",
            )
        found[str(network)] = None
    return list(found)
