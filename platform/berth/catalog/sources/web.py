"""What all sources over HTTP share: ranges, tags, and what each status means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from berth.catalog.sources.source import Opened, SourceRefused, SourceTrouble
from berth.web.outbound import OutboundFailed, Reply, fetch

CHUNK: Final = 1 << 20
MOST_WAIT: Final = 600.0  # seconds; longer is not waited, whatever the source asks for
_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


@contextmanager
def asked(
    url: str, *, headers: Mapping[str, str] | None = None, secret: Mapping[str, str] | None = None
) -> Iterator[Reply]:
    """Follows redirects. Raises SourceTrouble where trying again may help, and passes on OutboundRefused."""
    try:
        with fetch(url, headers=headers, secret=secret, redirects=True) as reply:
            if reply.status == 429 or reply.status >= 500:
                raise SourceTrouble(f"status_{reply.status}", wait=_wait(reply))
            yield reply
    except OutboundFailed as failed:
        raise SourceTrouble(failed.why) from None


def _wait(reply: Reply) -> float | None:
    told = reply.headers.get("retry-after", "")
    return min(float(told), MOST_WAIT) if told.isdigit() and len(told) < 6 else None


@contextmanager
def opened(
    url: str,
    begin: int,
    end: int | None,
    *,
    name: str,
    headers: Mapping[str, str] | None = None,
    secret: Mapping[str, str] | None = None,
) -> Iterator[Opened]:
    """A file over HTTP from `begin` on. Raises SourceRefused, SourceTrouble, OutboundRefused."""
    ranged = {"Range": f"bytes={begin}-{'' if end is None else end - 1}"} if begin or end is not None else {}
    with asked(url, headers={**(headers or {}), **ranged}, secret=secret) as reply:
        yield read_reply(reply, begin, name)


def read_reply(reply: Reply, begin: int, name: str) -> Opened:
    if reply.status not in {200, 206}:
        raise refusal(reply.status, name, reply.target.host)
    tag = reply.headers.get("etag", "").removeprefix("W/").strip('"')[:200]
    if reply.status == 200:
        length = reply.headers.get("content-length", "")
        return Opened(0, int(length) if length.isdigit() else None, tag, _chunks(reply))
    told = _RANGE.fullmatch(reply.headers.get("content-range", ""))
    if told is None or int(told[1]) != begin:
        raise SourceTrouble("bad_range")
    return Opened(begin, None if told[3] == "*" else int(told[3]), tag, _chunks(reply))


def _chunks(reply: Reply) -> Iterator[bytes]:
    try:
        while chunk := reply.read(CHUNK):
            yield chunk
    except OutboundFailed as failed:
        raise SourceTrouble(failed.why) from None


def refusal(status: int, name: str, host: str) -> SourceRefused | SourceTrouble:
    """In words that say what to do."""
    params = {"file": name, "host": host, "status": status}
    if status == 401:
        return SourceRefused(
            "source_unauthorised",
            f"{host} wants to know who asks for {name}. Choose a credential for it.",
            params=params,
        )
    if status == 403:
        return SourceRefused(
            "source_forbidden",
            f"{host} does not give {name} to this credential. Check what it may read.",
            params=params,
        )
    if status in {404, 410}:
        return SourceRefused("source_not_found", f"{host} has no {name}. Check the address.", params=params)
    if status in {412, 416}:
        return SourceTrouble("source_changed")
    return SourceRefused("source_answer", f"{host} answered {status} when asked for {name}.", params=params)
