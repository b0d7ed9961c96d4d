"""`python -m benchmarks.core.rights`: the share of checks of rights, and of quotas, in an append.

Three writers append in turn to the same streams of one range server, in frames of one batch and of
many. One connection has no identity, so nothing is checked for it, one has an identity with the
right to append, and one of these has a quota, too, which it never reaches. A ratio compares their
processor time, client and server together.
"""

from __future__ import annotations

import argparse
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
from sbp_core.pd import PlacementDriver
from sbp_core.rangeserver.server import RangeServer
from sbp_core.server.gate import Identified
from sbp_core.server.peer import Peer
from sbp_core.settings.quota_settings import rules_of
from sbp_core.settings.server_settings import PlacementDriverSettings, RangeServerSettings

_ITEM_COUNTS: Final = (1, 100)
_BATCHES_PER_ROUND: Final = 400
_ROUNDS: Final = 40
_VALUE_BYTES: Final = 1024
_SUBJECT: Final = "etl"
_METERED: Final = "metered"
_RULES: Final = rules_of(
    {
        _METERED: {
            "bytes_in_per_s": 10**12,
            "bytes_out_per_s": 10**12,
            "requests_per_s": 10**9,
            "connections": 10,
            "memory_bytes": 10**12,
        }
    }
)


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


def _meter(server: RangeServer) -> None:
    """Let identities have quotas on a server without identities."""
    listener = server._listener  # noqa: SLF001

    def maybe_metered(peer: Identified) -> str | None:
        identity = peer.standing.identity
        return None if identity is None else identity.subject

    listener._gate.maybe_metered = maybe_metered  # type: ignore[method-assign]  # noqa: SLF001
    listener._quotas.rules = lambda: _RULES  # noqa: SLF001


async def _identified(appender: _Appender, server: RangeServer, subject: str) -> None:
    """Connect, and let the connection have an identity."""
    others = _peers(server)
    await appender.microseconds(1)
    (peer,) = _peers(server) - others
    peer.standing.identity = Identity(subject)


async def _measure(
    endpoint: str, server: RangeServer, item_count: int
) -> tuple[float, float, float]:
    """Return the microseconds of a batch without checks.

    Also the median ratios: of rights to nothing, and of rights and quotas to rights.
    """
    data = batch(_VALUE_BYTES)
    async with AsyncClient(endpoint) as admin:
        names = [f"orders-{item_count}-{number}" for number in range(item_count)]
        created = await admin.create_streams([StreamSpec(name) for name in names])
        subjects = (_SUBJECT, _METERED)
        await admin.change_grants([Grant(each, Right.APPEND, "orders-*") for each in subjects])
    stream_ids = [each.stream_id for each in created]
    free, checked, metered = three = [_Appender(endpoint, stream_ids, data) for _ in range(3)]
    calls = max(1, _BATCHES_PER_ROUND // item_count)
    async with free.client, checked.client, metered.client:
        await free.microseconds(calls)
        for appender, subject in zip((checked, metered), subjects, strict=True):
            await _identified(appender, server, subject)
            await appender.microseconds(calls)
        rounds = []
        for number in range(_ROUNDS):
            order = three[number % 3 :] + three[: number % 3]
            found = {each: await each.microseconds(calls) for each in order}
            rounds.append([found[each] for each in three])
    times, of_rights, of_quotas = zip(
        *((one, two / one, three / two) for one, two, three in rounds), strict=True
    )
    return median(times), median(of_rights), median(of_quotas)


async def _run(folder: Path) -> list[tuple[str, ...]]:
    driver = PlacementDriver(PlacementDriverSettings(data_dir=folder / "pd", port=0))
    endpoint = await driver.start()
    settings = RangeServerSettings(data_dir=folder / "rs", placement_driver=endpoint, port=0)
    server = RangeServer(settings)
    await server.start()
    _meter(server)
    try:
        found = [(each, *await _measure(endpoint, server, each)) for each in _ITEM_COUNTS]
    finally:
        await server.stop()
        await driver.stop()
    return [
        (str(count), f"{us:,.0f}", *(f"{each:.3f}" for each in ratios))
        for count, us, *ratios in found
    ]


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.rights", description=__doc__)
    parser.parse_args(arguments)
    heading = ("batches in a frame", "us without checks", "ratio with rights", "and with quotas")
    with new_folder() as folder:
        lines = asyncio.run(_run(folder))
    shown = table(heading, lines, text_columns=set())
    print(f"processor time of a batch of 1 KiB\n\n{shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
