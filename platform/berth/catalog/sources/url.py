"""Files by their addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote, urlsplit

from berth.catalog.intake.kinds import NAME_FORM
from berth.catalog.sources import web
from berth.catalog.sources.source import Listing, Opened, RemoteFile, Source, SourceRefused
from berth.web.outbound import read_url

MOST_URLS: Final = 256


class UrlSource(Source):
    at_once = 4

    def __init__(self, urls: Sequence[str], *, token: str = "", host: str = "") -> None:
        if not 1 <= len(urls) <= MOST_URLS:
            raise SourceRefused("urls", f"Give 1 to {MOST_URLS} addresses, one for each file.", field="urls")
        self.urls = tuple(urls)
        self._token, self._host = token, host
        for url in urls:
            read_url(url)

    def listing(self) -> Listing:
        files = []
        for url in self.urls:
            name = unquote(urlsplit(url).path).rpartition("/")[2]
            if not NAME_FORM.fullmatch(name):
                raise SourceRefused(
                    "file_name",
                    "The last part of the address must be the file's name, as in https://host/model.gguf.",
                    field="urls",
                )
            with web.opened(url, 0, 1, name=name, secret=self._secret(url)) as opened:
                files.append(RemoteFile(name, url, opened.size, "", opened.tag))
        if len({each.name for each in files}) != len(files):
            raise SourceRefused("file_name", "Two addresses end with the same file name.", field="urls")
        first = urlsplit(self.urls[0])
        return Listing(tuple(files), f"{first.scheme}://{first.netloc}{first.path}"[:400])

    @contextmanager
    def open(self, file: RemoteFile, begin: int, end: int | None) -> Iterator[Opened]:
        with web.opened(file.location, begin, end, name=file.name, secret=self._secret(file.location)) as opened:
            yield opened

    def _secret(self, url: str) -> dict[str, str]:
        """The token goes to the host it was given for, and to no other."""
        if self._token and read_url(url).host == self._host:
            return {"Authorization": f"Bearer {self._token}"}
        return {}
