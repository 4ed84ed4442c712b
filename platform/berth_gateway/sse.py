"""Server-sent events: bytes in any pieces in, the data of whole events out."""

from __future__ import annotations

MAX_EVENT = 8 * 1024 * 1024  # an engine's event larger than this is a fault

_BOM = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """An event does not end."""


class EventSplitter:
    """Splits a stream at its blank lines; understands LF, CRLF and CR, also when torn apart, comments and many-line data."""

    __slots__ = ("_after_cr", "_begun", "_held", "_searched")

    def __init__(self) -> None:
        self._held = bytearray()  # bytes of an unfinished event, line ends already LF
        self._searched = 0
        self._after_cr = False
        self._begun = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that is now complete. Events without data are left out."""
        begun = self._begun or data[:6] == b"data: "  # no byte order mark, then
        if begun and not self._held and not self._after_cr and data[-2:] == b"\n\n" and 13 not in data:
            # By far the most common: whole events, LF, one line each; and of these, a single one.
            self._begun = True
            if data.count(b"\n") == 2 and data[:6] == b"data: ":
                return [data[6:-2]]
            out = []
            for block in data[:-2].split(b"\n\n"):
                if block[:6] == b"data: " and 10 not in block:
                    out.append(block[6:])
                else:
                    found = _event_data(block)
                    if found is not None:
                        out.append(found)
            return out
        return self._feed_slowly(data)

    def goes_on(self) -> None:
        """Whole events have come already."""
        self._begun = True

    @property
    def between_events(self) -> bool:
        """Nothing of an event has come yet."""
        return self._begun and not self._held and not self._after_cr

    def _feed_slowly(self, data: bytes) -> list[bytes]:
        if not data:
            return []
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        self._after_cr = data.endswith(b"\r")
        held = self._held
        if 13 in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        held += data
        if not self._begun:
            if len(held) < 3 and _BOM.startswith(bytes(held)):
                return []
            if held.startswith(_BOM):
                del held[:3]
            self._begun = True
        out = []
        start = 0
        search = max(0, self._searched - 1)
        while True:
            end = held.find(b"\n\n", search)
            if end < 0:
                break
            found = _event_data(bytes(held[start:end]))
            if found is not None:
                out.append(found)
            start = search = end + 2
        if start:
            del held[:start]
        self._searched = len(held)
        if len(held) > MAX_EVENT:
            raise EventTooLarge
        return out

    def finish(self) -> list[bytes]:
        """At the end of the stream: an event that was not closed by a blank line."""
        found = _event_data(bytes(self._held))
        self._held.clear()
        self._searched = 0
        return [] if found is None else [found]


def _event_data(block: bytes) -> bytes | None:
    """Data lines of one event joined by LF; None when it has none."""
    lines = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines) if lines else None
