"""What goes wrong on this machine, told as a sentence."""

from __future__ import annotations


class HostError(Exception):
    """Something about this machine stops Berth. The text says what, why and what to do next; it is shown as it is."""
