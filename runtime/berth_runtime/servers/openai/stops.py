"""Ending an answer at a stop string that may be spread over tokens. Pure."""

from __future__ import annotations


class Stops:
    """Gives out text as soon as it cannot be the beginning of a stop string any more."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """What may be shown now. After a stop string was found, nothing is."""
        if self.found:
            return ""
        if not self._stops:
            return text
        self._held += text
        at = min((place for place in map(self._held.find, self._stops) if place >= 0), default=-1)
        if at >= 0:
            self.found = True
            shown, self._held = self._held[:at], ""
            return shown
        keep = self._beginning()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def finish(self) -> str:
        """What was held back, when the answer ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _beginning(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = min(max(map(len, self._stops)) - 1, len(self._held))
        for length in range(longest, 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
