"""Reading ranges of one object over HTTP, without following anything and without showing its address."""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

_SECONDS: Final = 30.0  # for each wait
_CHUNK: Final = 1 << 20
_WHOLE: Final = 16 << 20  # up to this size a store need not know ranges
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Refused(Exception):
    """The store says no, and will say it again."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


class Unreachable(Exception):
    """No whole answer this time."""


class Source:
    """One object of known size. Safe to use from several threads: each read has a connection of its own."""

    def __init__(self, url: str, size: int) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._size = size

    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Bytes `first` up to but not including `last`, in pieces with their offsets. Raises Refused, Unreachable."""
        connection = self._connection()
        try:
            connection.request(
                "GET", self._target, headers={"Range": f"bytes={first}-{last - 1}", "Accept-Encoding": "identity"}
            )
            answer = connection.getresponse()
            skip = self._before(answer, first)
            for offset, data in self._pieces(answer, first - skip, last):
                if offset + len(data) > first:
                    cut = max(first - offset, 0)
                    yield offset + cut, data[cut:]
        except (OSError, http.client.HTTPException):
            raise Unreachable from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=_SECONDS, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=_SECONDS)

    def _before(self, answer: http.client.HTTPResponse, first: int) -> int:
        """How many bytes come before the ones asked for: none, or all if the store knows no ranges."""
        if answer.status == 206:
            said = _CONTENT_RANGE.fullmatch(answer.getheader("Content-Range", ""))
            if not said or int(said[1]) != first or said[3] not in ("*", str(self._size)):
                raise Refused(416)
            return 0
        if answer.status == 200:
            if self._size > _WHOLE:
                raise Refused(answer.status)  # reading everything again for each range would never end
            return first
        if answer.status in (408, 425, 429) or answer.status >= 500:
            raise Unreachable
        raise Refused(answer.status)

    def _pieces(self, answer: http.client.HTTPResponse, offset: int, last: int) -> Iterator[tuple[int, bytes]]:
        while offset < last:
            data = answer.read(min(_CHUNK, last - offset))
            if not data:
                raise Unreachable  # cut short
            yield offset, data
            offset += len(data)
