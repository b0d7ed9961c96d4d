"""`python -m benchmarks.core.rights`: the share of the checks of rights in an append.

Two writers append in turn to the same streams of one range server, in frames of one batch and of
many: one connection has an identity with the right to append, the other has none, so nothing is
checked for it. A ratio compares their processor time, client and server together.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.core.servers import batch
from benchmarks.harness.folders import new_folder
from benchmarks.harness.tables import table
from sbp_core.access.identity import Identity
from sbp_core.access.rights import Grant, Right
from sbp_core.client import AppendItem, AsyncClient, StreamSpec, Writer
from sbp_core.pd import PlacementDriver, PlacementDriverSettings
from sbp_core.rangeserver.range_server_settings import RangeServerSettings
from sbp_core.rangeserver.server import RangeServer
from sbp_core.server.peer import Peer

_ITEM_COUNTS: Final = (1, 100)
_BATCHES_PER_ROUND: Final = 400
_ROUNDS: Final = 40
_VALUE_BYTES: Final = 1024
_SUBJECT: Final = "etl"


class _Appender:
    """A client that appends a batch to each stream at a time, as a writer."""

    def __init__(self, endpoint: str, stream_ids: Sequence[int], data: bytes) -> None:
        self.client = AsyncClient(endpoint)
        self._items = [AppendItem(each, data) for each in stream_ids]
        self._writer = Writer()

    async def microseconds(self, call_count: int) -> float:
        """Return the processor time of a batch."""
        started = time.process_time()
        for _ in range(call_count):
            await self.client.append(self._items, writer=self._writer)
        return (time.process_time() - started) / call_count / len(self._items) * 1e6


def _peers(server: RangeServer) -> set[Peer]:
    return {*server._listener._peers}  # noqa: SLF001 - no identity without TLS otherwise


async def _measure(endpoint: str, server: RangeServer, item_count: int) -> tuple[float, float]:
    """Return the microseconds of a batch without checks, and the median ratio with them."""
    data = batch(_VALUE_BYTES)
    async with AsyncClient(endpoint) as admin:
        names = [f"orders-{item_count}-{number}" for number in range(item_count)]
        created = await admin.create_streams([StreamSpec(name) for name in names])
        await admin.change_grants([Grant(_SUBJECT, Right.APPEND, "orders-*")])
    stream_ids = [each.stream_id for each in created]
    free, checked = (_Appender(endpoint, stream_ids, data) for _ in range(2))
    calls = max(1, _BATCHES_PER_ROUND // item_count)
    async with free.client, checked.client:
        await free.microseconds(calls)
        others = _peers(server)
        await checked.microseconds(1)
        (peer,) = _peers(server) - others
        peer.standing.identity = Identity(_SUBJECT)
        await checked.microseconds(calls)
        times, ratios = [], []
        for number in range(_ROUNDS):
            order = (free, checked) if number % 2 else (checked, free)
            found = {each: await each.microseconds(calls) for each in order}
            times.append(found[free])
            ratios.append(found[checked] / found[free])
    return median(times), median(ratios)


async def _run(folder: Path) -> list[tuple[str, ...]]:
    driver = PlacementDriver(PlacementDriverSettings(data_dir=folder / "pd", port=0))
    endpoint = await driver.start()
    settings = RangeServerSettings(data_dir=folder / "rs", placement_driver=endpoint, port=0)
    server = RangeServer(settings)
    await server.start()
    try:
        found = [(each, *await _measure(endpoint, server, each)) for each in _ITEM_COUNTS]
    finally:
        await server.stop()
        await driver.stop()
    return [(str(count), f"{us:,.0f}", f"{ratio:.3f}") for count, us, ratio in found]


def main() -> int:
    """Measure; print a table."""
    heading = ("batches in a frame", "us without checks", "ratio with checks")
    with new_folder() as folder:
        lines = asyncio.run(_run(folder))
    shown = table(heading, lines, text_columns=set())
    print(f"processor time of a batch of 1 KiB\n\n{shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
