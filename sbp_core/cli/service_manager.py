"""Messages to the service manager that started a server: sd_notify(3) of systemd.

A service manager gives its socket in NOTIFY_SOCKET, and in WATCHDOG_USEC how long the server may
send nothing before it counts as hung. Without them nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import MutableMapping
from typing import Final

_LOG: Final = logging.getLogger(__name__)
_START_BEAT_SECONDS: Final = 10.0
_START_EXTENDED_US: Final = 60_000_000
"""A start may take as long as it needs, while the event loop says each 10 s that it runs."""


class ServiceManager:
    """Sends the states of one server. A message that cannot be sent is logged, and left out."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Take the variables out of the environment: children of this process send nothing."""
        address = environ.pop("NOTIFY_SOCKET", "")
        watchdog_us = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address.startswith(("/", "@")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        self._watchdog_us = 0
        if watchdog_us.isdecimal() and pid in {"", str(os.getpid())}:
            self._watchdog_us = int(watchdog_us)
        self._is_starting = True
        self._is_ready = False

    async def beat(self) -> None:
        """Report that the event loop runs, until it is cancelled: a loop that hangs does not.

        While the server starts, and then with a watchdog.
        """
        seconds = min(_START_BEAT_SECONDS, (self._watchdog_us or sys.maxsize) / 2e6)
        while self._socket is not None:
            if self._is_starting:
                self._send(f"EXTEND_TIMEOUT_USEC={_START_EXTENDED_US}")
            elif self._watchdog_us:
                self._send("WATCHDOG=1")
            await asyncio.sleep(seconds)

    def serves(self, status: str) -> None:
        """Report that the server serves."""
        self._is_starting = False
        self._is_ready = True
        self._send("READY=1", f"STATUS={status}", "WATCHDOG=1")

    def reloads(self) -> None:
        """Report that files are read again; `reloaded` follows."""
        if self._is_ready:
            self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """Report that a server that serves has read its files again."""
        if self._is_ready:
            self._send("READY=1")

    def stops(self) -> None:
        """Report that the server stops."""
        self._is_starting = self._is_ready = False
        self._send("STOPPING=1", "STATUS=stopping")

    def _send(self, *lines: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            _LOG.warning("service manager not reached: %s", error.strerror)
