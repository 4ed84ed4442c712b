"""TLS ended by the gateway itself: certificate and key from files, read anew when they change."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from berth_gateway.config import ConfigError
from berth_gateway.logs import Log

LOOK_SECONDS = 1.0


class Certificate:
    """A server's TLS context. New connections get the newest certificate; those that stand are left alone."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """Raises ConfigError."""
        self._files = (certificate, key or certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["http/1.1"])
        self.context = context
        self._seen = self._stamp()
        try:
            context.load_cert_chain(*self._files)
        except (OSError, ssl.SSLError):
            raise ConfigError(
                f"{certificate} and {self._files[1]} are no certificate and the key that belongs to it, both PEM."
            ) from None

    def _stamp(self) -> tuple[tuple[int, int], ...] | None:
        try:
            return tuple((s.st_mtime_ns, s.st_ino) for s in (file.stat() for file in self._files))
        except OSError:
            return None

    def refresh(self) -> bool | None:
        """Takes changed files. None: nothing changed; False: they do not fit (yet), and the old certificate stays."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return None
        try:
            # Loaded into a context of its own first: a half-written pair must not disturb the one that serves.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
            self.context.load_cert_chain(*self._files)
        except (OSError, ssl.SSLError):
            return False
        self._seen = stamp
        return True

    async def watch(self, log: Log) -> None:
        """Until cancelled. A pair that does not fit is told once, and looked at again each second."""
        told = False
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            fresh = self.refresh()
            if fresh:
                log.info("certificate_loaded")
            elif fresh is False and not told:
                log.error("certificate_refused")
            told = fresh is False
