"""The hub's HTTP API, as huggingface.co and its mirrors speak it. The revision is pinned to a commit before anything is fetched.

GET {endpoint}/api/models/{id}/revision/{revision}            who it is: commit, licence
GET {endpoint}/api/models/{id}/tree/{commit}?recursive=true   its files, with size and (for large ones) SHA-256
GET {endpoint}/{id}/resolve/{commit}/{path}                   a file, usually by a redirect to another host
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, urljoin

from berth.catalog.sources import web
from berth.catalog.sources.choosing import choose
from berth.catalog.sources.source import Listing, Opened, RemoteFile, Source, SourceRefused, SourceTrouble
from berth.web.outbound import Reply

MOST_ANSWER: Final = 16 << 20
MOST_PAGES: Final = 50
REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
REVISION: Final = re.compile(r"[A-Za-z0-9][\w./-]{0,127}", re.ASCII)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class HubSource(Source):
    def __init__(
        self, endpoint: str, repository: str, revision: str = "main", *, pattern: str = "", token: str = ""
    ) -> None:
        self.endpoint, self.repository, self.revision, self.pattern = (
            endpoint.rstrip("/"),
            repository,
            revision,
            pattern,
        )
        self._secret = {"Authorization": f"Bearer {token}"} if token else {}
        if not REPOSITORY.fullmatch(repository) or ".." in repository:
            raise SourceRefused("hub_id", "A model's id looks like organisation/name.", field="repository")
        if not REVISION.fullmatch(revision) or ".." in revision:
            raise SourceRefused("hub_revision", "A revision is a branch, a tag or a commit id.", field="revision")

    def listing(self) -> Listing:
        about = self._json(f"/api/models/{self.repository}/revision/{quote(self.revision, safe='')}")
        commit = about.get("sha") if isinstance(about, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise SourceTrouble("hub_answer")
        files = choose(list(self._tree(commit)), self.pattern)
        return Listing(
            files=tuple(files),
            origin=f"{self.repository}@{commit}",
            licence=_licence(about),
            pins={"revision": commit},
        )

    @contextmanager
    def open(self, file: RemoteFile, begin: int, end: int | None) -> Iterator[Opened]:
        url = f"{self.endpoint}/{self.repository}/resolve/{self.revision}/{quote(file.location)}"
        ranged = {"Range": f"bytes={begin}-{'' if end is None else end - 1}"} if begin or end is not None else {}
        with web.asked(url, headers=ranged, secret=self._secret) as reply:
            if reply.status not in {200, 206}:
                raise self._refusal(reply, file.name)
            linked = reply.hops.get("x-linked-size", "")
            if file.size is not None and linked.isdigit() and int(linked) != file.size:
                raise SourceTrouble("hub_size")
            opened = web.read_reply(reply, begin, file.name)
            # Behind a redirect the tag is the storage's; the commit and the digest pin the content.
            yield Opened(opened.begin, opened.size, file.tag, opened.chunks)

    def _tree(self, commit: str) -> Iterator[RemoteFile]:
        at: str | None = f"/api/models/{self.repository}/tree/{commit}?recursive=true&expand=false"
        for _ in range(MOST_PAGES):
            if at is None:
                return
            entries, at = self._page(at)
            for entry in entries:
                if (file := _file(entry)) is not None:
                    yield file
        raise SourceRefused(
            "hub_too_many_files", "The repository has more files than a model has. Name a folder of it.", field="files"
        )

    def _page(self, at: str) -> tuple[list[Any], str | None]:
        url = at if at.startswith(self.endpoint) else f"{self.endpoint}{at}"
        with web.asked(url, secret=self._secret) as reply:
            if reply.status != 200:
                raise self._refusal(reply, self.repository)
            entries = _decoded(reply)
            following = re.search(r'<([^>]+)>;\s*rel="next"', reply.headers.get("link", ""))
        if not isinstance(entries, list):
            raise SourceTrouble("hub_answer")
        following_url = urljoin(url, following[1]) if following else None
        if following_url is not None and not following_url.startswith(f"{self.endpoint}/"):
            raise SourceTrouble("hub_answer")  # the token goes to the hub only
        return entries, following_url

    def _json(self, path: str) -> Any:
        with web.asked(f"{self.endpoint}{path}", secret=self._secret) as reply:
            if reply.status != 200:
                raise self._refusal(reply, self.repository)
            return _decoded(reply)

    def _refusal(self, reply: Reply, name: str) -> SourceRefused | SourceTrouble:
        code, params = reply.headers.get("x-error-code", ""), {"repository": self.repository}
        if code == "GatedRepo" or (reply.status == 403 and not code):
            return SourceRefused(
                "hub_gated",
                f"{self.repository} is only given to people who agreed to its terms. Open its page on the hub, agree, and choose a "
                "credential with a token of that account.",
                params=params,
            )
        if code == "RevisionNotFound":
            return SourceRefused(
                "hub_revision_not_found",
                f"{self.repository} has no revision {self.revision}.",
                field="revision",
                params=params,
            )
        if reply.status == 401 or code == "RepoNotFound":
            hint = "the token may not read it" if self._secret else "it is private and needs a credential with a token"
            return SourceRefused(
                "hub_not_found",
                f"There is no {self.repository} on the hub, or {hint}.",
                field="repository",
                params=params,
            )
        if reply.status == 404:
            return SourceRefused("hub_not_found", f"The hub has no {name}.", field="repository", params=params)
        return web.refusal(reply.status, name, reply.target.host)


def _decoded(reply: Reply) -> Any:
    try:
        return json.loads(reply.whole(MOST_ANSWER))
    except (ValueError, RecursionError):
        raise SourceTrouble("hub_answer") from None


def _file(entry: Any) -> RemoteFile | None:
    if not isinstance(entry, dict) or entry.get("type") != "file":
        return None
    path, size, lfs = entry.get("path"), entry.get("size"), entry.get("lfs")
    if not isinstance(path, str) or not isinstance(size, int) or size < 0 or len(path) > 1000:
        return None
    digest = lfs.get("oid", "") if isinstance(lfs, dict) else ""
    digest = digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else ""
    return RemoteFile(path.rpartition("/")[2], path, size, digest, digest or str(entry.get("oid", ""))[:200])


def _licence(about: Any) -> str:
    card = about.get("cardData")
    told = (card.get("license_name") or card.get("license")) if isinstance(card, dict) else None
    if isinstance(told, list):
        told = told[0] if told else None
    return told[:80] if isinstance(told, str) and told.isprintable() else ""
