"""How far streams have landed in Iceberg tables, as the catalog says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sbp_core.client import StreamInfo

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sbp_core.lake.table import TableState

_ANSWER_SECONDS: Final = 3.0
"""How long a page waits for the catalog."""


class Tables:
    """Reads tables of a catalog; without a catalog nothing is known of them.

    A table is read once at a time, so a catalog that hangs holds few threads, however often pages
    ask.
    """

    def __init__(
        self, catalog: Catalog | None = None, *, answer_seconds: float = _ANSWER_SECONDS
    ) -> None:
        self._catalog = catalog
        self._answer_seconds = answer_seconds
        self._reading: dict[tuple[int, str], asyncio.Task[TableState]] = {}

    async def maybe_state(self, stream: StreamInfo, table: str) -> TableState | None:
        """Return how far a stream has landed; None without a catalog."""
        if self._catalog is None:
            return None
        from sbp_core.lake.status import state_of
        from sbp_core.lake.table import TableState

        key = stream.stream_id, table
        reading = self._reading.get(key)
        if reading is None:
            reading = asyncio.create_task(asyncio.to_thread(state_of, self._catalog, stream, table))
            self._reading[key] = reading
            reading.add_done_callback(lambda _: self._reading.pop(key))
        try:
            async with asyncio.timeout(self._answer_seconds):
                return await asyncio.shield(reading)
        except TimeoutError:
            return TableState(stream.label, table, error="the catalog has not answered in time")
