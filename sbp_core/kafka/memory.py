"""The memory of requests, responses and what is made of them, of all connections together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sbp_core import limits

BYTES_MAX: Final = 256 * limits.MIB
_SHARE: Final = 8
"""One response may take an eighth of what is free."""
_LEAST_BYTES: Final = limits.MIB


class Memory:
    """Counts bytes that are held; a claim waits while there is no room."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._left = bytes_max
        self._freed = asyncio.Event()

    @property
    def response_bytes(self) -> int:
        """How many bytes of records a response should have at most."""
        return max(self._left // _SHARE, _LEAST_BYTES)

    async def claim(self, size_bytes: int) -> None:
        """Count bytes once there is room for them."""
        while self._left < size_bytes:
            self._freed.clear()
            await self._freed.wait()
        self._left -= size_bytes

    @contextmanager
    def holding(self, size_bytes: int) -> Iterator[None]:
        """Count bytes that are there already, until the end of the body."""
        self._left -= size_bytes
        try:
            yield
        finally:
            self.free(size_bytes)

    def free(self, size_bytes: int) -> None:
        """Give bytes back."""
        self._left += size_bytes
        self._freed.set()
