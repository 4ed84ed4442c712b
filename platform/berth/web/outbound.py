"""The one door to outside addresses that users name (threat G6).

A URL is read strictly; its host is resolved once, every address must be a public one, and that very address is dialled. Redirects
are followed only when asked for, each hop checked anew, without the credentials. Nothing of the environment (proxies) has a say.
An operator may name private `host:port` pairs in BERTH_OUTBOUND_PRIVATE_HOSTS; those may be private, and spoken to without TLS.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin, urlsplit

from django.conf import settings

from berth.web.errors import ApiError

CONNECT_SECONDS: Final = 10
READ_SECONDS: Final = 30  # without a byte
MOST_REDIRECTS: Final = 5
MOST_URL: Final = 8192
_HOST: Final = re.compile(r"(?!\d+$)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*\.?")
_NUMERIC: Final = re.compile(
    r"(?:0x[0-9a-f]*|\d+)(?:\.(?:0x[0-9a-f]*|\d+))*\.?"
)  # forms that resolvers read as an address
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class OutboundRefused(ApiError):
    """The address is not one that Berth goes to. Trying again does not help."""

    status = 422


class OutboundFailed(Exception):
    """The other side did not answer: "dns", "connect", "timeout", "tls", "broken". Trying again may help."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True)
class Target:
    scheme: str
    host: str
    port: int
    path: str  # with the query

    @property
    def place(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def private(self) -> bool:
        """Whether the operator has named it."""
        return self.place in settings.OUTBOUND_PRIVATE_HOSTS


class Reply:
    """A status line, headers by lower-case name, and a body to be read in pieces."""

    def __init__(self, raw: http.client.HTTPResponse, target: Target, hops: Mapping[str, str]) -> None:
        self._raw, self.target = raw, target
        self.status: int = raw.status
        self.headers = {name.lower(): value for name, value in raw.getheaders()}
        self.hops = hops  # headers of the redirects that led here, the first one's winning

    def read(self, most: int) -> bytes:
        """At most so many bytes; empty at the end. Raises OutboundFailed, also for a body that is cut short."""
        try:
            chunk = self._raw.read(most)
            if not chunk and self._raw.length:
                raise OutboundFailed("broken")
            return chunk
        except (OSError, http.client.HTTPException) as error:
            raise OutboundFailed("timeout" if isinstance(error, TimeoutError) else "broken") from None

    def whole(self, most: int) -> bytes:
        """The body. Raises OutboundRefused when it is larger than `most`."""
        parts, size = [], 0
        while chunk := self.read(min(1 << 16, most + 1 - size)):
            parts.append(chunk)
            size += len(chunk)
            if size > most:
                raise OutboundRefused(
                    "outbound_too_large", f"{self.target.host} sent more than {most:,} bytes where less was due."
                )
        return b"".join(parts)


@contextmanager
def fetch(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    secret: Mapping[str, str] | None = None,
    redirects: bool = False,
) -> Iterator[Reply]:
    """GETs a URL. `secret`: headers for the first host only, dropped at a redirect to another. `redirects`: follow them.

    Raises OutboundRefused and OutboundFailed.
    """
    target, private = read_url(url), dict(secret or {})
    hops: dict[str, str] = {}
    for _ in range(MOST_REDIRECTS + 1):
        connection = _connected(target)
        try:
            reply = _asked(connection, target, {**(headers or {}), **private}, hops)
            location = reply.headers.get("location")
            if not (redirects and reply.status in {301, 302, 303, 307, 308} and location):
                yield reply
                return
            following = read_url(urljoin(f"{target.scheme}://{target.place}{target.path}", location))
            if target.scheme == "https" and following.scheme != "https" and not following.private:
                raise OutboundRefused("outbound_scheme", f"{target.host} leads on to an address without TLS.")
            if following.place != target.place:
                private = {}
            hops = {**reply.headers, **hops}
            target = following
        finally:
            connection.close()
    raise OutboundRefused("outbound_redirects", f"{target.host} leads on and on. Give the address where the file is.")


def read_url(url: str) -> Target:
    """Raises OutboundRefused."""
    if len(url) > MOST_URL or not url.isascii() or not url.isprintable() or any(each in url for each in ' "<>\\^`{|}'):
        raise OutboundRefused("outbound_url", "The address has characters that an address has not, or is too long.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise OutboundRefused("outbound_url", "The address cannot be read. It looks like https://host/path.") from None
    host = (parts.hostname or "").lower()
    if parts.scheme not in {"http", "https"}:
        raise OutboundRefused("outbound_scheme", "The address must begin with https://.")
    if "@" in parts.netloc:
        raise OutboundRefused("outbound_url", "The address holds a user name. Use a credential instead.")
    if not host or len(host) > 253 or "%" in host or not (":" in host or _HOST.fullmatch(host)) or _odd_number(host):
        raise OutboundRefused("outbound_host", "The address's host is no name and no ordinary IP address.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = Target(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), path)
    if target.scheme == "http" and not target.private:
        raise OutboundRefused(
            "outbound_scheme",
            "The address must begin with https://: without TLS anybody between could change the file.",
        )
    return target


def _odd_number(host: str) -> bool:
    """`2852039166`, `127.1`, `0x7f.0.0.1`: addresses in disguise."""
    if not _NUMERIC.fullmatch(host):
        return False
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return True
    return False


def is_public(address: Address) -> bool:
    """Whether an address is one of the open internet, also when it is wrapped in an IPv6 one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None and not is_public(inner):
            return False
        if address.is_site_local or address in _NAT64:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved and not address.is_unspecified


def resolve(target: Target) -> list[str]:
    """The addresses to dial, all of them public unless the operator named the place. Raises OutboundRefused, OutboundFailed."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise OutboundFailed("dns") from None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    if not target.private:
        for text in addresses:
            if "%" in text or not is_public(ipaddress.ip_address(text)):
                raise OutboundRefused(
                    "outbound_private",
                    f"{target.host} is an address inside a private network, and Berth goes to public ones only. An operator can name "
                    "it in BERTH_OUTBOUND_PRIVATE_HOSTS.",
                    params={"host": target.host},
                )
    return addresses


class _Connection(http.client.HTTPConnection):
    """Over a socket that is connected already."""

    def __init__(self, target: Target, connected: socket.socket) -> None:
        super().__init__(target.host, target.port, timeout=READ_SECONDS)
        self.sock = connected


def _connected(target: Target) -> _Connection:
    trouble = "connect"
    for address in resolve(target):
        try:
            raw = socket.create_connection((address, target.port), timeout=CONNECT_SECONDS)
        except OSError as error:
            trouble = "timeout" if isinstance(error, TimeoutError) else "connect"
            continue
        try:
            raw.settimeout(READ_SECONDS)
            if target.scheme == "https":
                raw = ssl.create_default_context().wrap_socket(raw, server_hostname=target.host)
            return _Connection(target, raw)
        except OSError as error:
            raw.close()
            trouble = "tls" if isinstance(error, ssl.SSLError) else "connect"
    raise OutboundFailed(trouble)


def _asked(connection: _Connection, target: Target, headers: Mapping[str, str], hops: Mapping[str, str]) -> Reply:
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise OutboundRefused("outbound_header", f"The value for {name} has characters that a header has not.")
    try:
        connection.request(
            "GET", target.path, headers={"User-Agent": "berth", "Accept-Encoding": "identity", **headers}
        )
        reply = Reply(connection.getresponse(), target, hops)
    except (OSError, http.client.HTTPException) as error:
        raise OutboundFailed("timeout" if isinstance(error, TimeoutError) else "broken") from None
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise OutboundRefused(
            "outbound_encoding", f"{target.host} sends the file in another encoding than it was asked for."
        )
    return reply
