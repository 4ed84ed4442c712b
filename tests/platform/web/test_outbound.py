"""The one door outwards: what is private is never dialled, by whatever name, and credentials stay with their host."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.test import override_settings

from berth.web import outbound
from berth.web.outbound import OutboundFailed, OutboundRefused, fetch, is_public, read_url

HOSTILE = [
    "http://169.254.169.254/latest/meta-data/",
    "https://169.254.169.254/",
    "https://2852039166/",
    "https://127.1/",
    "https://0x7f.0.0.1/",
    "https://0177.0.0.1/",
    "https://[::ffff:7f00:1]/",
    "https://[::ffff:169.254.169.254]/",
    "https://[::1]/",
    "https://[fd00:ec2::254]/",
    "https://[64:ff9b::a9fe:a9fe]/",
    "https://[2002:7f00:1::]/",
    "https://[fe80::1%25lo]/",
    "https://0.0.0.0/",
    "https://10.0.0.1/",
    "https://100.64.0.1/",
    "https://localhost/",
    "https://user@example.org/",
    "https://example.org@127.0.0.1/",
    "file:///etc/passwd",
    "gopher://example.org/",
    "ftp://example.org/x",
    "http://example.org/x",
    "https:///x",
    "https://exa mple.org/",
    "https://example.org/\r\nHost: x",
    "https://ex\u0430mple.org/",
    "https://example.org:99999/",
    "https://-example.org/",
    "https://" + "a" * 9000,
    "",
]


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every address that is connected to."""
    seen: list[Any] = []
    real = socket.create_connection

    def spy(address: Any, *args: Any, **options: Any) -> socket.socket:
        seen.append(address)
        return real(address, *args, **options)

    monkeypatch.setattr("berth.web.outbound.socket.create_connection", spy)
    return seen


@pytest.mark.threat("G6")
@pytest.mark.parametrize("url", HOSTILE)
def test_nothing_private_is_dialled(url: str, dialled: list[Any]) -> None:
    with pytest.raises(OutboundRefused) as refused, fetch(url, redirects=True):
        pass
    assert refused.value.status == 422
    assert dialled == []


@pytest.mark.threat("G6")
@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True), ("2606:4700::1111", True), ("192.168.0.1", False), ("172.16.0.1", False), ("224.0.0.1", False),
        ("255.255.255.255", False), ("::", False), ("ff02::1", False), ("2001:db8::1", False),
        ("64:ff9b::808:808", False), ("fec0::1", False), ("192.0.2.1", False), ("198.18.0.1", False),
    ],
)  # fmt: skip
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public


def answers(monkeypatch: pytest.MonkeyPatch, *sets: list[str]) -> list[str]:
    """Makes the resolver give these, one set a question."""
    asked: list[str] = []
    left = list(sets)

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in left.pop(0)]

    monkeypatch.setattr("berth.web.outbound.socket.getaddrinfo", resolve)
    return asked


@pytest.mark.threat("G6")
def test_a_name_with_one_private_address_among_public_ones(monkeypatch: pytest.MonkeyPatch, dialled: list[Any]) -> None:
    answers(monkeypatch, ["8.8.8.8", "127.0.0.1"])
    with pytest.raises(OutboundRefused, match="outbound_private"), fetch("https://example.org/"):
        pass
    assert dialled == []


@pytest.mark.threat("G6")
def test_the_address_that_was_checked_is_the_one_that_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers differently the second time is not asked a second time."""
    asked = answers(monkeypatch, ["8.8.8.8"], ["127.0.0.1"])
    dialled: list[Any] = []

    def refuse(address: Any, **_: Any) -> socket.socket:
        dialled.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr("berth.web.outbound.socket.create_connection", refuse)
    with pytest.raises(OutboundFailed), fetch("https://rebinding.example/"):
        pass
    assert (asked, dialled) == (["rebinding.example"], [("8.8.8.8", 443)])


class Server:
    """Answers by path; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.replies: dict[str, tuple[int, dict[str, str], bytes]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
                status, headers, content = outer.replies.get(self.path, (404, {}, b""))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    one, other = Server(), Server()
    with override_settings(OUTBOUND_PRIVATE_HOSTS=[one.place, other.place]):
        yield one, other
    one.close()
    other.close()


def test_a_place_that_the_operator_named(servers: tuple[Server, Server]) -> None:
    one, _ = servers
    one.replies["/x?y=1"] = (200, {"X-Told": "so"}, b"content")
    with fetch(
        f"http://{one.place}/x?y=1", headers={"Range": "bytes=0-1"}, secret={"Authorization": "Bearer s"}
    ) as reply:
        assert (reply.status, reply.headers["x-told"], reply.whole(100)) == (200, "so", b"content")
    assert one.asked[0][1]["range"] == "bytes=0-1"
    assert one.asked[0][1]["authorization"] == "Bearer s"


@pytest.mark.threat("G6")
def test_credentials_do_not_follow_to_another_host(servers: tuple[Server, Server]) -> None:
    one, other = servers
    one.replies["/a"] = (302, {"Location": "/b", "X-Linked-Size": "7"}, b"")
    one.replies["/b"] = (307, {"Location": f"http://{other.place}/c"}, b"")
    other.replies["/c"] = (200, {}, b"content")
    with fetch(f"http://{one.place}/a", secret={"Authorization": "Bearer s"}, redirects=True) as reply:
        assert reply.whole(100) == b"content"
        assert reply.hops["x-linked-size"] == "7"
    assert [("authorization" in headers) for _, headers in one.asked] == [True, True]
    assert "authorization" not in other.asked[0][1]


@pytest.mark.threat("G6")
@pytest.mark.parametrize(
    "location",
    ["http://169.254.169.254/", "https://localhost/", "file:///etc/passwd", "//127.0.0.2/", "https://[::1]/"],
)
def test_a_redirect_inside_is_not_followed(servers: tuple[Server, Server], location: str, dialled: list[Any]) -> None:
    one, _ = servers
    one.replies["/a"] = (302, {"Location": location}, b"")
    with pytest.raises(OutboundRefused), fetch(f"http://{one.place}/a", redirects=True):
        pass
    assert len(dialled) == 1


def test_redirects_are_handed_out_unless_asked_for_and_end(servers: tuple[Server, Server]) -> None:
    one, _ = servers
    one.replies["/a"] = (302, {"Location": "/a"}, b"")
    with fetch(f"http://{one.place}/a") as reply:
        assert reply.status == 302
    with pytest.raises(OutboundRefused, match="outbound_redirects"), fetch(f"http://{one.place}/a", redirects=True):
        pass


def test_bodies_are_bounded_and_whole(servers: tuple[Server, Server]) -> None:
    one, _ = servers
    one.replies["/large"] = (200, {}, b"x" * 5000)
    one.replies["/cut"] = (200, {"Content-Length": "50", "Connection": "close"}, b"x")
    one.replies["/zip"] = (200, {"Content-Encoding": "gzip"}, b"x")
    with fetch(f"http://{one.place}/large") as reply, pytest.raises(OutboundRefused, match="too_large"):
        reply.whole(4999)
    with fetch(f"http://{one.place}/cut") as reply, pytest.raises(OutboundFailed):
        reply.whole(100)
    with pytest.raises(OutboundRefused, match="encoding"), fetch(f"http://{one.place}/zip"):
        pass


def test_header_values_are_plain(servers: tuple[Server, Server]) -> None:
    one, _ = servers
    with pytest.raises(OutboundRefused), fetch(f"http://{one.place}/", secret={"Authorization": "Bearer a\r\nX: y"}):
        pass
    assert one.asked == []


def test_nobody_there_is_told_apart_from_what_is_refused() -> None:
    named = override_settings(OUTBOUND_PRIVATE_HOSTS=["127.0.0.1:9"])
    with named, pytest.raises(OutboundFailed, match="connect"), fetch("http://127.0.0.1:9/"):
        pass
    assert read_url("https://EXAMPLE.org:8443/a?b").place == "example.org:8443"
    assert outbound.MOST_REDIRECTS < 10
