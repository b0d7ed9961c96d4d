"""Where streams begin and end, for consumers that want to know how far behind they are."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from sbp_core.client.async_client import AsyncClient
from sbp_core.errors import SbpError

_KEPT_SECONDS: Final = 0.5
_STREAMS_MAX: Final = 10_000


class StreamEnds:
    """The bounds of streams by id, half a second old at most."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[int, int], float]] = {}

    async def of(
        self, client: AsyncClient, stream_ids: Collection[int]
    ) -> dict[int, tuple[int, int]]:
        """Return the first and the next offset of streams; leave out what cannot be had."""
        now = time.monotonic()
        fresh = now - _KEPT_SECONDS
        old = [
            each for each in stream_ids if each not in self._known or self._known[each][1] < fresh
        ]
        if len(self._known) + len(old) > _STREAMS_MAX:
            self._known.clear()
            old = list(stream_ids)
        if old:
            try:
                found = await client.stream_bounds(old)
            except SbpError:  # the fetch beside it tells the reason
                found = []
            for each in found:
                self._known[each.stream_id] = (each.start_offset, each.next_offset), now
        return {each: self._known[each][0] for each in stream_ids if each in self._known}
